"""The command line: ``train.py`` and the commands, from arguments to an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.blame import is_explained
from pipeline.config.compose import composer_for
from pipeline.config.errors import ConfigError, Problem, nearest
from pipeline.config.printing import print_config

CONFIG_ERROR = 2
FAILED = 1

_FLAGS = {
    "-h": "help", "--help": "help",
    "-m": "multirun", "--multirun": "multirun",
    "-c": "cfg", "--cfg": "cfg",
    "-p": "package", "--package": "package",
    "-cd": "config_dir", "--config-dir": "config_dir",
    "-sc": "completion", "--shell-completion": "completion",
    "--resolve": "resolve",
}  # fmt: skip
_WITH_VALUE = {
    "cfg": "--cfg job",
    "package": "--cfg job --package <key>",
    "config_dir": "--config-dir <folder>",
}
"""Flags that take a value, and how they are typed."""

_OF_CFG = {"package": "--package", "resolve": "--resolve"}
"""Flags that say what ``--cfg job`` prints, and mean nothing without it."""


@dataclass(slots=True)
class Arguments:
    """A command line taken apart."""

    overrides: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)


def main(job: str, argv: Sequence[str] | None = None) -> int:
    """Run a job with the config that the arguments describe.

    Args:
        job: Dotted path of the job, a function of the plain config. It is imported when the
            config has been found right, and not before.
        argv: Arguments; None takes those of the program.

    Returns:
        The exit status: 0, 2 for mistakes in the configuration, 1 for a sweep with failed jobs.
    """
    return _run(list(sys.argv[1:] if argv is None else argv), job, None)


def run_command(
    command: str, argv: Sequence[str], run: Callable[[Any], int | None], *, sweeps: bool = False
) -> int:
    """Run one of the commands; its settings are registered as ``settings/<command>``.

    They stand in the config under the command's name and may be given with or without it:
    ``python -m pipeline pack pack.path=x`` and ``... pack path=x`` are the same.

    Args:
        command: Its name.
        argv: Overrides and flags.
        run: Takes the config, or all `Points` of a command that sweeps.
        sweeps: Whether ``key=a,b`` means two configurations.
    """
    return _run(list(argv), run, command, sweeps=sweeps)


def configure(argv: Sequence[str], *, command: str | None = None) -> dict[str, Any]:
    """The checked config that arguments describe.

    Raises:
        ConfigError: With a line for every mistake.
    """
    from pipeline.config.job import read_job

    arguments = take_apart(argv)
    composer = composer_for(arguments.overrides, config_dir=_config_dir(arguments))
    return read_job(arguments.overrides, composer, command=command).config


def take_apart(argv: Sequence[str]) -> Arguments:
    """Flags and overrides.

    Raises:
        ConfigError: A flag is unknown, lacks its value, or means nothing without another.
    """
    arguments = Arguments()
    problems = []
    rest = list(argv)
    while rest:
        text = rest.pop(0)
        flag, _, value = text.partition("=")
        if not text.startswith("-"):
            arguments.overrides.append(text)
        elif flag not in _FLAGS:
            near = nearest(flag, [name for name in _FLAGS if name.startswith("--")])
            problems.append(Problem(text, f"no such flag; type {near or '--help'}"))
        elif _FLAGS[flag] in _WITH_VALUE and not value:
            if rest and not rest[0].startswith("-"):
                arguments.flags[_FLAGS[flag]] = rest.pop(0)
            else:
                how = _WITH_VALUE[_FLAGS[flag]]
                problems.append(Problem(flag, f"its value is missing; type {how}"))
        elif value and _FLAGS[flag] not in (*_WITH_VALUE, "completion"):
            problems.append(Problem(flag, f"{value!r} given, takes no value; type {flag}"))
        else:
            arguments.flags[_FLAGS[flag]] = value
    problems += _wrong_together(arguments.flags)
    if problems:
        raise ConfigError(problems)
    return arguments


def _wrong_together(flags: dict[str, str]) -> Iterator[Problem]:
    """What is wrong with the flags, each of which has its value."""
    if flags.get("cfg", "job") != "job":
        yield Problem("--cfg", f"{flags['cfg']!r} given, accepts job; type --cfg job")
    for name, flag in _OF_CFG.items():
        if name in flags and "cfg" not in flags and "help" not in flags:
            typed = f"{flag} {flags[name]}".strip()
            yield Problem(flag, f"it says what --cfg prints; type --cfg job {typed}")
    if "package" in flags and "multirun" in flags:
        yield Problem("--package", "a sweep prints the whole config of each job; leave it away")


def _run(
    argv: list[str], job: str | Callable[..., Any], command: str | None, *, sweeps: bool = False
) -> int:
    try:
        arguments = take_apart(argv)
        if "completion" in arguments.flags:
            from pipeline.config.completion import complete

            return complete(arguments.overrides, command=command)
        composer = composer_for(arguments.overrides, config_dir=_config_dir(arguments))
        if "help" in arguments.flags:
            from pipeline.config.usage import print_help

            print_help(composer, arguments.overrides, command=command)
            return 0
        if "multirun" in arguments.flags and not sweeps:
            return _sweep(arguments, composer, job)
        if sweeps:
            from pipeline.config.points import read_points

            assert command is not None and not isinstance(job, str)
            points = read_points(arguments.overrides, composer, command=command)
            if "cfg" not in arguments.flags:
                return job(points) or 0
            for point in points.points:
                print_config(point.config, arguments.flags.get("package"))
            return 0
        from pipeline.config.job import locate, read_job

        config = read_job(arguments.overrides, composer, command=command).config
        if "cfg" in arguments.flags:
            print_config(config, arguments.flags.get("package"))
            return 0
        result = (locate(job) if isinstance(job, str) else job)(config)
        return result if command is not None and isinstance(result, int) else 0
    except ConfigError as error:
        if is_first_rank():
            print(error, file=sys.stderr)
        return CONFIG_ERROR
    except (ValueError, OSError) as error:
        if not is_explained(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def _sweep(arguments: Arguments, composer: Any, job: str | Callable[..., Any]) -> int:
    if not isinstance(job, str):
        raise ConfigError([Problem("-m", "a command runs one job; only train.py runs sweeps")])
    from pipeline.config.sweep import sweep

    show_only = "cfg" in arguments.flags
    return sweep(arguments.overrides, composer, job, show_only=show_only, prints=is_first_rank())


def _config_dir(arguments: Arguments) -> Path | None:
    folder = arguments.flags.get("config_dir")
    return Path(folder).expanduser() if folder else None


def is_first_rank() -> bool:
    """Whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"

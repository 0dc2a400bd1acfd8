"""The command line: ``train.py`` and the commands, from arguments to an exit status."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import yaml

from penstock.core.user_errors import in_one_line, program_of
from penstock.pipeline.config.composition import Composer, composer_for
from penstock.pipeline.config.errors import ConfigError, Problem, is_first_rank, nearest, tell
from penstock.pipeline.config.job import read_job
from penstock.pipeline.config.overrides import naming_files

CONFIG_ERROR = 2
FAILED = 1


class _Parser(argparse.ArgumentParser):
    """Reads the flags; what is wrong with one is a mistake of the configuration."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("-m", "--multirun", action="store_true")
        self.add_argument("-c", "--cfg", choices=["job"])
        self.add_argument("-p", "--package", metavar="KEY")
        self.add_argument("-cd", "--config-dir", metavar="FOLDER")
        self.add_argument("-sc", "--shell-completion", action="store_true")
        self.add_argument("--resolve", action="store_true")

    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem("", f"{message}; --help lists the flags")])


_LONG = ("--help", "--multirun", "--cfg", "--package", "--config-dir", "--resolve")


def main(job: str, argv: Sequence[str] | None = None) -> int:
    """Run a job with the config that the arguments describe.

    Args:
        job: Dotted path of the job, a function of the plain config. It is imported when the
            config has been found right, and not before.
        argv: Arguments; None takes those of the program.

    Returns:
        The exit status: 0, 2 for mistakes in the configuration, 1 for a sweep with failed jobs.
    """
    return run_command(None, sys.argv[1:] if argv is None else argv, job)


def run_command(
    command: str | None, argv: Sequence[str], job: str | Callable[[Any], int | None], *,
    sweeps: bool = False, takes_files: bool = False, path: str = "",
) -> int:  # fmt: skip
    """Run one of the commands; its settings are registered as ``settings/<command>``.

    They stand in the config under the command's name and may be given with or without it:
    ``penstock pack pack.path=x`` and ``penstock pack path=x`` are the same.

    Args:
        command: Its name; None: it trains, see `main`.
        argv: Overrides and flags.
        job: Takes the config, or all `Points` of a command that sweeps; or its dotted path.
        sweeps: Whether ``key=a,b`` means two configurations.
        takes_files: Whether paths among the overrides are its data.
        path: The setting that a path alone gives.
    """
    try:
        flags, overrides = take_apart(argv)
        if flags.shell_completion:
            from penstock.pipeline.config.completion import complete

            return complete(overrides)
        if path:
            alone = [text for text in overrides if "=" not in text and text[:1] != "~"]
            overrides = [f"{path}={text}" if text in alone else text for text in overrides]
        if takes_files:
            overrides = naming_files(overrides)
        composer = composer_for(overrides, config_dir=flags.config_dir)
        if flags.help:
            from penstock.pipeline.config.help import print_help

            print_help(composer, overrides, command=command)
            return 0
        if flags.multirun and not sweeps:
            return _sweep(overrides, composer, job, show_only=bool(flags.cfg))
        if sweeps:
            from penstock.pipeline.config.sweeps.sweep import read_points

            assert command is not None and not isinstance(job, str)
            points = read_points(overrides, composer, command=command)
            if not flags.cfg:
                return job(points) or 0
            for point in points.points:
                print_config(point.config, flags.package)
            return 0
        config = read_job(overrides, composer, command=command).config
        if flags.cfg:
            print_config(config, flags.package)
            return 0
        result = (pkgutil.resolve_name(job) if isinstance(job, str) else job)(config)
        return result if command is not None and isinstance(result, int) else 0
    except ConfigError as error:
        tell(str(error), of_all_ranks=True)
        return CONFIG_ERROR
    except Exception as error:
        if (line := in_one_line(error, command=command or "")) is None:
            raise
        tell(f"error: {line}")
        return FAILED


def configure(argv: Sequence[str], *, command: str | None = None) -> dict[str, Any]:
    """Read the checked config that arguments describe.

    Raises:
        ConfigError: With a line for every mistake.
    """
    flags, overrides = take_apart(argv)
    composer = composer_for(overrides, config_dir=flags.config_dir)
    return read_job(overrides, composer, command=command).config


def take_apart(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Take arguments apart into flags and overrides.

    Raises:
        ConfigError: A flag is unknown, lacks its value, or means nothing without another.
    """
    flags, rest = _Parser().parse_known_args(argv)
    problems = [
        Problem(text, f"no such flag; type {nearest(text.partition('=')[0], _LONG) or '--help'}")
        for text in rest
        if text.startswith("-")
    ]
    for flag, value in (("--package", flags.package), ("--resolve", flags.resolve)):
        if value and not (flags.cfg or flags.help):
            typed = f"{flag} {value}" if isinstance(value, str) else flag
            problems.append(Problem(flag, f"it says what --cfg prints; type --cfg job {typed}"))
    if flags.package and flags.multirun:
        text = "a sweep prints the whole config of each job; leave it away"
        problems.append(Problem("--package", text))
    if problems:
        raise ConfigError(problems)
    return flags, rest


def _sweep(
    overrides: list[str], composer: Composer, job: str | Callable[..., Any], *, show_only: bool
) -> int:
    if not isinstance(job, str):
        raise ConfigError([Problem("-m", "a command runs one job; a sweep is typed "
                                   f"{program_of('train')} -m ...")])  # fmt: skip
    from penstock.pipeline.config.sweeps.sweep import sweep

    return sweep(overrides, composer, job, show_only=show_only, prints=is_first_rank())


def print_config(config: Mapping[str, Any], package: str | None = None) -> None:
    """Print a config, or the part of it at `package`, as YAML.

    Raises:
        ConfigError: There is no such part.
    """
    part: Any = config
    for name in package.split(".") if package else ():
        if not isinstance(part, Mapping) or name not in part:
            names = list(part) if isinstance(part, Mapping) else []
            near = nearest(name, names)
            remedy = f"; did you mean {near}?" if near else ""
            raise ConfigError([Problem("--package", f"{package!r} is not in the config{remedy}")])
        part = part[name]
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
    print(text.removesuffix("...\n"), end="")

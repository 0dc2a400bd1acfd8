"""The command line: ``train.py`` and the commands, from arguments to an exit status."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from string import Template
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from penstock.core.user_errors import Problem, in_one_line, nearest
from penstock.pipeline.config.compose import (
    choose,
    compose_texts,
    configure,
    prepare,
    settings_of,
)
from penstock.pipeline.config.errors import ConfigError, tell
from penstock.pipeline.config.options import CONF, groups, options_of, search_in
from penstock.pipeline.config.overrides import read_overrides
from penstock.pipeline.config.sweep import JOB, run_job, sweep

CONFIG_ERROR = 2
FAILED = 1
_LONG = ("--help", "--multirun", "--cfg", "--package", "--config-dir", "--shell-completion")


class _Parser(argparse.ArgumentParser):
    """Reads the flags; a wrong flag is a mistake of the configuration."""

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


def main(argv: Sequence[str] | None = None) -> int:
    """Train with the config that the arguments describe, or sweep.

    Returns:
        The exit status: 0, 2 for mistakes in the configuration, 1 for a failure in one line.
    """
    return run_command(None, sys.argv[1:] if argv is None else argv, JOB)


def run_command(
    command: str | None, argv: Sequence[str], job: str | Callable[[Any], int | None], *,
    read: Callable[..., Any] = configure,
    rewrite: Callable[[list[str]], list[str]] = list,
) -> int:  # fmt: skip
    """Run one of the commands; its settings are registered as ``settings/<command>``.

    The config holds the settings under the command's name, which overrides may omit:
    ``penstock pack pack.path=x`` and ``penstock pack path=x`` are the same.

    Args:
        command: Its name; None trains.
        argv: Overrides and flags.
        job: Takes the config, or its dotted path, which is imported when the config is right.
        read: Makes the config from overrides.
        rewrite: Turns what is typed into overrides.
    """
    try:
        flags, overrides = take_apart(argv)
        if command is not None and flags.multirun:
            raise ConfigError([Problem("-m", "a command runs one job; a sweep trains: penstock "
                                       "train -m ...")])  # fmt: skip
        search_in(flags.config_dir)
        overrides = rewrite(overrides)
        prepare(overrides)
        if flags.help or flags.shell_completion:
            print_help(overrides, command) if flags.help else _complete(overrides)
            return 0
        if flags.multirun:
            sweep(overrides)
            return 0
        config = read(overrides, command=command)
        if flags.cfg:
            print_config(config if isinstance(config, dict) else config.config, flags.package)
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


def _complete(overrides: list[str]) -> None:
    """Let Hydra complete a command line, or install its completion."""
    sys.argv[1:] = ["--shell-completion", *overrides]
    with suppress(SystemExit):
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(run_job)()


def print_help(overrides: list[str], command: str | None) -> None:
    """Print the template of Hydra's help; Hydra itself takes seconds to list the groups."""
    settings = settings_of(command)
    typed, problems = read_overrides(overrides, command=command, settings=tuple(settings)[1:])
    _, chosen = choose([each for each in typed if each.group], problems)
    if problems:
        raise ConfigError(problems)
    texts = [each.hydra for each in (*chosen, *typed) if each in chosen or not each.group]
    if command is not None:
        ConfigStore.instance().store(command, {command: settings}, "command", "_global_")
        texts.insert(0, f"+command={command}")
    config = compose_texts(texts, with_hydra=True)
    shown = Template(config.pop("hydra").help.template)
    listed = "".join(f"{group}: {', '.join(options_of(group))}\n" for group in groups())
    print(shown.substitute(APP_CONFIG_GROUPS=listed, CONFIG=OmegaConf.to_yaml(config)))


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
        if value and not flags.cfg:
            typed = f"{flag} {value}" if isinstance(value, str) else flag
            problems.append(Problem(flag, f"it belongs to --cfg; type --cfg job {typed}"))
    actions = ("install=", "uninstall=", "query=")
    if flags.shell_completion and not any(text.startswith(actions) for text in rest):
        problems.append(Problem("--shell-completion", "type -sc install=bash, zsh or fish"))
    if flags.cfg and flags.multirun:
        problems.append(Problem("--cfg", "a sweep has several configs; leave -m away"))
    if problems:
        raise ConfigError(problems)
    return flags, rest


def print_config(config: Mapping[str, Any], package: str | None = None) -> None:
    """Print a config, or the part of it at `package`, as YAML.

    Raises:
        ConfigError: There is no such part.
    """
    part: Any = config
    for name in package.split(".") if package else ():
        if not isinstance(part, Mapping) or name not in part:
            near = nearest(name, list(part) if isinstance(part, Mapping) else [])
            remedy = f"; did you mean {near}?" if near else ""
            raise ConfigError([Problem("--package", f"{package!r} is not in the config{remedy}")])
        part = part[name]
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
    print(text.removesuffix("...\n"), end="")

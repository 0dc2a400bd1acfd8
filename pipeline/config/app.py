"""The command line: ``train.py`` and the commands, from arguments to an exit status."""

from __future__ import annotations

import gc
import pkgutil
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any

import yaml
from omegaconf import OmegaConf

from penstock.core.user_errors import ExplainedError, Problem, in_one_line
from penstock.pipeline.config.compose import compose_typed, configure, prepare
from penstock.pipeline.config.errors import ConfigError, tell, type_nearest
from penstock.pipeline.config.options import CONF, groups, options_of, search_in
from penstock.pipeline.config.overrides import read_overrides
from penstock.pipeline.config.sweep import JOB, run_hydra, sweep

_PARSER = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
_PARSER.add_argument("-h", "--help", action="store_true")
_PARSER.add_argument("-m", "--multirun", action="store_true")
_PARSER.add_argument("-c", "--cfg", choices=["job"])
_PARSER.add_argument("--resolve", action="store_true")  # --cfg always does
_PARSER.add_argument("-p", "--package", metavar="KEY")
_PARSER.add_argument("-cd", "--config-dir", metavar="FOLDER")
_SHELLS = [f"{a}={b}" for a in ("install", "uninstall", "query") for b in ("bash", "fish", "zsh")]
_PARSER.add_argument("-sc", "--shell-completion", choices=_SHELLS)


def main(argv: Sequence[str] | None = None) -> int:
    """Train with the config that the arguments describe, or sweep.

    Returns:
        The exit status: 0, 2 for mistakes of the user, 1 for another failure in one line.
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
            raise ConfigError([Problem("-m", "only training sweeps; type penstock train -m ...")])
        search_in(flags.config_dir)
        overrides = rewrite(overrides)
        prepare(overrides)
        if not gc.isenabled():  # by the program; modules last, so collections skip them
            gc.freeze()
            gc.enable()
        if flags.help:
            print_help(overrides, command)
        elif flags.shell_completion:
            run_hydra(["--shell-completion", flags.shell_completion, *overrides])
        elif flags.multirun:
            sweep(overrides)
        else:
            config = read(overrides, command=command)
            if not flags.cfg:
                result = (pkgutil.resolve_name(job) if isinstance(job, str) else job)(config)
                return result if command is not None and isinstance(result, int) else 0
            print_config(config if isinstance(config, dict) else config.config, flags.package)
        return 0
    except ConfigError as error:
        tell(str(error), of_all_ranks=True)
        return 2
    except Exception as error:
        if (line := in_one_line(error)) is None:
            raise
        tell(f"error: {line}")
        return 1 if isinstance(error, ExplainedError) or not isinstance(error, ValueError) else 2


def print_help(overrides: list[str], command: str | None) -> None:
    """Print the template of Hydra's help; Hydra itself takes seconds to list the groups."""
    typed, problems = read_overrides(overrides, command)
    config = compose_typed(typed, problems, command)
    if problems:
        raise ConfigError(problems)
    held = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    listed = "".join(f"{group}: {', '.join(options_of(group))}\n" for group in groups())
    text = Template(held["hydra"]["help"]["template"])
    print(text.substitute(APP_CONFIG_GROUPS=listed, CONFIG=OmegaConf.to_yaml(config)))


def take_apart(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Take arguments apart into flags and overrides.

    Raises:
        ConfigError: A flag is unknown, lacks its value, or means nothing without another.
    """
    try:
        flags, rest = _PARSER.parse_known_args(argv)
    except ArgumentError as error:
        raise ConfigError([Problem("", f"{error}; --help lists the flags")]) from error
    said = "no such flag; --help lists the flags"
    problems = [Problem(text, said) for text in rest if text.startswith("-")]
    for flag in ("package", "resolve"):
        if getattr(flags, flag) and not flags.cfg:
            problems.append(Problem(f"--{flag}", "it belongs to --cfg; type --cfg job too"))
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
    part, place = dict(config), ""
    for name in package.split(".") if package else ():
        names = part if isinstance(part, dict) else {}
        if name not in names:
            remedy = type_nearest(name, names, f"--cfg job --package {place}{{}}")
            text = f"the config has nothing at {package!r}{remedy}"
            raise ConfigError([Problem("--package", text)])
        part, place = names[name], f"{place}{name}."
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
    print(text.removesuffix("...\n"), end="")

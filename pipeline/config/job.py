"""One job: its overrides checked, composed, resolved and checked again as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from penstock.core import registry
from penstock.datasets.files.passwords import hidden
from penstock.pipeline.config.check import check
from penstock.pipeline.config.combinations import (
    check_combinations,
    suit_iterable,
    suit_model,
)
from penstock.pipeline.config.components import load_imports
from penstock.pipeline.config.composition import Composer, CompositionError
from penstock.pipeline.config.errors import ConfigError, Problem
from penstock.pipeline.config.interpolation import plain, referred_keys, unresolved_keys
from penstock.pipeline.config.overrides import (
    Change,
    Choice,
    Parsed,
    apply_changes,
    compose_choices,
    parse,
)
from penstock.pipeline.config.places import CHOSEN_BY, PRESETS, watching
from penstock.pipeline.config.saved import (
    RESUME,
    apply_to_saved,
    as_typed,
    naming_folders,
    read_saved,
    saved_run,
    variables_of,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A checked job.

    Attributes:
        config: Its plain config.
        overrides: What Hydra has to be given to compose the same.
    """

    config: dict[str, Any]
    overrides: tuple[str, ...]


def read_job(texts: Sequence[str], composer: Composer, *, command: str | None = None) -> Job:
    """Compose and check what the overrides of one job say.

    Args:
        texts: Overrides as typed.
        composer: Groups and options, with all components registered.
        command: The command whose settings stand under its name.

    Raises:
        ConfigError: With all mistakes.
    """
    settings = _settings_of(command)
    texts = naming_folders(texts, command)
    parsed = parse(texts, composer, command=command, command_keys=tuple(settings)[1:])
    for text in parsed.hydra:
        key = text.split("=")[0]
        parsed.problems.append(Problem(key, "only a sweep has a launcher and a sweeper; add -m"))
    if (file := saved_run(parsed, command)) is not None:
        return Job(_of_run(file, texts, parsed, composer, command, settings), tuple(texts))
    wrong = {problem.key for problem in parsed.problems}
    chosen = CHOSEN_BY.get(command or "", {})
    wrong |= {group for name, group in chosen.items() if f"{command}.{name}" in wrong}
    if wrong & set(PRESETS):
        # It might have chosen anything, so nothing can be said about the values.
        raise ConfigError(parsed.problems)
    composer = _with_imports(parsed, composer)
    for name, group in chosen.items():  # the command's own choice where nothing is typed
        if group not in {*wrong, *(choice.group for choice in parsed.choices)}:
            option = str(settings[name])
            parsed.choices.append(Choice(group, (option,), False, f"{group}={option}"))
    composed, accepted = compose_choices(parsed, composer)
    with open_dict(composed):
        composed.update(_under_its_name(command, settings, parsed))
    skip = frozenset(key.replace("/", ".") for key in wrong)
    accepted += apply_changes(composed, parsed, composer, skip)
    checked = _checked(composed, parsed, skip=skip, command=command, fresh=True)
    return Job(checked, tuple(accepted))


def _settings_of(command: str | None) -> dict[str, Any]:
    """The settings of a command with their defaults, behind their target."""
    if command is None:
        return {}
    component = registry.find(f"settings/{command}")
    assert component is not None, command
    return dict(registry.option_node(component))


def _under_its_name(
    command: str | None, settings: Mapping[str, Any], parsed: Parsed
) -> dict[str, dict[str, Any]]:
    """The key of a command in a config, with the options that were chosen for its settings."""
    if command is None:
        return {}
    chosen = {choice.group: choice.options[0] for choice in parsed.choices if choice.options}
    by_name = CHOSEN_BY.get(command, {}).items()
    options = {name: chosen[group] for name, group in by_name if group in chosen}
    return {command: {**settings, **options}}


def _of_run(
    file: Path, texts: Sequence[str], parsed: Parsed, composer: Composer, command: str | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Read the config of a job that goes on with a run, or of a command that tries one."""
    if command is None:
        _take_watching_as_values(parsed, composer)
    if command is None and (both := _run_and_typed(file, texts, composer)) is not None:
        if (config := as_typed(*both, parsed)) is not None:
            return config
    added = _under_its_name(command, settings, parsed)
    changed, variables = apply_to_saved(file, parsed, added, composer)
    return _checked(changed, parsed, command=command, variables=variables)


def _take_watching_as_values(parsed: Parsed, composer: Composer) -> None:
    """Let a run be gone on with under loggers, and callbacks that change nothing of it."""
    for choice in [each for each in parsed.choices if each.group in ("callback", "logger")]:
        group = choice.group
        nodes = {name: {"_target_": f"{group}/{name}"} for name in choice.options}
        known = all(registry.find(f"{group}/{name}") for name in nodes)
        if nodes and known and (group == "logger" or watching({group: nodes}) == nodes):
            parsed.choices.remove(choice)
            parsed.changes[:0] = [
                Change(composer.parse(f"++{group}.{name}._target_={group}/{name}"), choice.text)
                for name in nodes
            ]


def _run_and_typed(
    file: Path, texts: Sequence[str], composer: Composer
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Read a run's own config, and what is typed without the run; None: they do not compare."""
    new = [text for text in texts if not text.lstrip("+").startswith(f"{RESUME}=")]
    try:
        saved, typed = read_saved(file), read_job(new, composer).config
        if typed["imports"] != list(saved.get("imports") or ()):
            return None
        return check_config(saved, variables=variables_of(saved)), typed
    except ConfigError:  # it will be said of the saved config
        return None


def check_config(config: DictConfig, *, variables: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Resolve and check a config that is composed already, which may hold `variables` besides.

    Raises:
        ConfigError: With all mistakes.
    """
    return _checked(config, Parsed([], [], [], []), variables=variables)


def _checked(
    config: DictConfig,
    parsed: Parsed,
    *,
    skip: frozenset[str] = frozenset(),
    command: str | None = None,
    variables: frozenset[str] = frozenset(),
    fresh: bool = False,
) -> dict[str, Any]:
    if "hydra" in config:
        with open_dict(config):
            del config["hydra"]
    resolved, unresolved = plain(config)
    resolved = hidden(resolved)
    if fresh:
        chosen = {choice.group for choice in parsed.choices}
        chosen |= {change.key.partition(".")[0] for change in parsed.changes}
        if not chosen & {*PRESETS}:  # which may have chosen anything
            suit_iterable(resolved, chosen)
    skip |= {*unresolved_keys(resolved)}
    variables |= referred_keys(config)
    typed = frozenset(change.key for change in parsed.changes)
    checked, mistakes = check(
        resolved, skip=skip, variables=variables, typed=typed, command=command
    )
    found = [*parsed.problems, *unresolved, *mistakes]
    wrong = {problem.key for problem in found} | skip
    found += check_combinations(checked, wrong)
    found += suit_model(checked, wrong)
    if found:
        raise ConfigError(found)
    return checked


def _with_imports(parsed: Parsed, composer: Composer) -> Composer:
    """Load what presets import, and make a composer that knows what has come with it."""
    try:
        wanted = [
            name
            for choice in parsed.choices
            if choice.group in PRESETS
            for option in choice.options
            for name in composer.option(choice.group, option).get("imports") or []
        ]
    except CompositionError as error:
        raise ConfigError([*parsed.problems, Problem("", str(error))]) from error
    if not wanted:
        return composer
    load_imports(wanted)
    return composer.again()

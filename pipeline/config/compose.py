"""From overrides to a checked config: Hydra composes, and all mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import SafeDumper, YAMLError, safe_dump, safe_load

from penstock.core import registry
from penstock.core.user_errors import Problem, listing, nearest
from penstock.datasets.files.passwords import hidden
from penstock.pipeline.config.checks import check_components
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.interpolation import plain, referred_keys, unresolved_keys
from penstock.pipeline.config.libraries import family_of
from penstock.pipeline.config.options import CONF, option_file, search_in, store_options
from penstock.pipeline.config.overrides import Typed, parse, quote, read_overrides
from penstock.pipeline.config.places import CHOSEN_BY, NAMED, PRESETS, STEPS
from penstock.pipeline.config.resolve import resolve, suit_model
from penstock.pipeline.config.resume import resume
from penstock.pipeline.config.saved import naming_folders, saved_run
from penstock.pipeline.config.schema import check
from penstock.pipeline.config.values import given

# Hydra asserts that lines with `override` end a list of defaults.
FAILURES = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


class Config(dict[str, Any]):
    """A plain config, which a notebook shows as YAML."""

    def _repr_html_(self) -> str:
        texts = (
            (escape(key), escape(safe_dump(value, sort_keys=False, allow_unicode=True)))
            for key, value in self.items()
        )
        parts = (f"<details><summary>{k}</summary><pre>{text}</pre></details>" for k, text in texts)
        return "".join(parts)


SafeDumper.add_representer(Config, SafeDumper.represent_dict)


def compose(
    overrides: Sequence[str] = (), *, config_dir: str | Path | None = None
) -> dict[str, Any]:
    """Compose the config that ``penstock train <overrides>`` would run with.

    It can be called any number of times, also inside of an application of Hydra's own, and
    leaves Hydra's global state alone.

    Args:
        overrides: As typed: ``["dataset=lmdb", "loader.num_workers=2"]``.
        config_dir: A folder with options of one's own, searched before ours; None takes the
            folder ``conf`` of the working directory, where there is one.

    Returns:
        The plain config: dicts, lists and scalars, resolved and checked.

    Raises:
        ConfigError: A ValueError with a line for every mistake.
    """
    search_in(config_dir)
    return Config(configure(overrides))


def prepare(overrides: Sequence[str] = ()) -> None:
    """Register the components that overrides import, and give Hydra their options.

    Raises:
        ConfigError: A module to import does not exist.
    """
    register_components(_imports_in(overrides))
    store_options()


def _imports_in(overrides: Sequence[str]) -> list[str]:
    """Read ``imports=[...]``; the last one counts, as for any key."""
    names: list[str] = []
    for text in overrides:
        if text.lstrip("+").startswith("imports="):
            try:
                value = parse(quote(text)).value()
            except HydraException:  # reported with all overrides
                continue
            if isinstance(value, str):
                raise ConfigError([
                    Problem("imports", f"{value!r} given, expected a list; type imports=[{value}]")
                ])  # fmt: skip
            names = [str(name) for name in value] if isinstance(value, list) else []
    return names


def configure(texts: Sequence[str], *, command: str | None = None) -> dict[str, Any]:
    """Compose and check the config that overrides describe, with the settings of a command.

    Raises:
        ConfigError: With all mistakes.
    """
    prepare(texts)
    settings = settings_of(command)
    texts = naming_folders(texts, command)
    typed, problems = read_overrides(texts, command=command, settings=tuple(settings)[1:])
    if (file := saved_run(typed, problems, command)) is not None:
        return resume(file, typed, problems, {command: settings} if command else {})
    wrong = {problem.key for problem in problems}
    chosen = CHOSEN_BY.get(command or "", {})
    wrong |= {group for name, group in chosen.items() if f"{command}.{name}" in wrong}
    if wrong & {*PRESETS}:  # a preset chooses anything, so nothing is known of the values
        raise ConfigError(problems)
    _import_presets(typed)
    for name, group in chosen.items():  # the command's own choice where nothing is typed
        if group not in wrong and not any(each.group == group for each in typed):
            option = str(settings[name])
            typed.append(Typed("", group, option, group, False, f"+{group}={option}"))
    skip = frozenset(key.replace("/", ".") for key in wrong)
    typed = [each for each in typed if each.group or not _below(each.key, skip)]
    composed = _composed(typed, problems)
    if command is not None:
        options = {
            name: each.options[0]
            for name, group in chosen.items()
            for each in typed
            if each.group == group and each.options
        }
        given_here = OmegaConf.select(composed, command) or {}
        with open_dict(composed):
            composed[command] = {**settings, **given_here, **options}
    return checked(composed, typed, problems, skip=skip, command=command, fresh=True)


def settings_of(command: str | None) -> dict[str, Any]:
    """Return the settings of a command with their defaults, behind their target."""
    component = registry.find(f"settings/{command}")
    return dict(registry.option_node(component)) if component is not None else {}


def _import_presets(typed: Sequence[Typed]) -> None:
    """Load the modules that chosen presets import."""
    for each in typed:
        for option in each.options if each.group in PRESETS else ():
            file = option_file(each.group, option)
            try:
                held = safe_load(file.read_text(encoding="utf-8")) if file else None
            except YAMLError as error:
                raise ConfigError([Problem("", one_line(error))]) from error
            if isinstance(held, dict) and held.get("imports"):
                register_components(held["imports"])
                store_options()


def checked(
    config: DictConfig,
    typed: Sequence[Typed],
    problems: Sequence[Problem] = (),
    *,
    skip: frozenset[str] = frozenset(),
    command: str | None = None,
    variables: frozenset[str] = frozenset(),
    fresh: bool = False,
) -> dict[str, Any]:
    """Resolve and check a composed config.

    Args:
        config: The config.
        typed: The overrides it was composed with.
        problems: Their problems.
        skip: Keys that have been reported.
        command: The command whose settings stand under its name.
        variables: Keys at which a saved config holds values for interpolations.
        fresh: The config is new: implicit choices depend on what is typed.

    Raises:
        ConfigError: With all mistakes.
    """
    resolved, unresolved = plain(config)
    resolved = hidden(resolved)
    chosen = {each.key for each in typed}
    resolve(resolved, chosen if fresh else None)
    skip |= {*unresolved_keys(resolved)}
    variables |= referred_keys(config)
    keys = frozenset(each.key for each in typed if not each.group)
    found, mistakes = check(resolved, skip=skip, variables=variables, typed=keys, command=command)
    everything = [*problems, *unresolved, *mistakes]
    wrong = {problem.key for problem in everything} | skip
    everything += check_components(found, wrong)
    everything += suit_model(found, wrong)
    if everything:
        raise ConfigError(everything)
    return found


def _below(key: str, others: frozenset[str]) -> bool:
    return any(f"{key}.".startswith(f"{other}.") for other in others)


@contextmanager
def _as_hydra_1_3() -> Iterator[None]:
    """Behave as Hydra 1.3 does, whatever an application around us has chosen."""
    holder, application = version.VersionBase.instance(), GlobalHydra.instance()
    before, outer = holder.version_base, application.hydra
    application.clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            yield
    finally:
        holder.version_base = before
        if outer is not None:
            application.initialize(outer)


def compose_texts(texts: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """Compose by Hydra, unresolved.

    Raises:
        HydraException: It refuses an override or a file; other errors of YAML and OmegaConf too.
    """
    with _as_hydra_1_3():
        config = hydra.compose("config", list(texts), return_hydra_config=with_hydra)
    OmegaConf.set_struct(config, False)
    return config


def _composed(typed: Sequence[Typed], problems: list[Problem]) -> DictConfig:
    """Compose the chosen options by Hydra, then set the values that were typed.

    Raises:
        ConfigError: A file is broken.
    """
    config, _ = choose([each for each in typed if each.group], problems)
    for each in typed:
        if not each.group and (problem := set_value(config, each)):
            problems.append(problem)
    return config


def choose(typed: Sequence[Typed], problems: list[Problem]) -> tuple[DictConfig, list[Typed]]:
    """Compose chosen options; a group that the defaults lack is appended (``+group=option``).

    Returns:
        The config, and the choices that Hydra accepts; `problems` gets the others.

    Raises:
        ConfigError: A file is broken.
    """
    try:
        return compose_texts([each.hydra for each in typed]), list(typed)
    except FAILURES:  # one of them; find it
        pass
    good: list[Typed] = []
    config = compose_texts([])
    for each in sorted(typed, key=lambda one: "/" in one.group):
        tries = [each.hydra]
        if not each.deleted:
            tries.append(each.hydra[1:] if each.hydra[0] == "+" else f"+{each.hydra}")
        failures = []
        for text in tries:
            try:
                config = compose_texts([*(one.hydra for one in good), text])
            except FAILURES as error:
                failures.append(error)
                continue
            good.append(replace(each, hydra=text))
            break
        else:
            if not each.deleted:  # a file names something that does not exist
                raise ConfigError([*problems, Problem("", one_line(failures[0]))])
            problems.append(Problem(each.key, "there is no such choice to remove"))
    return config, good


def set_value(config: DictConfig, typed: Typed) -> Problem | None:
    """Set or remove one value as it was typed, or return what is wrong with it."""
    key, value = typed.key, typed.value
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if typed.deleted:
        if leaf in names:
            del node[leaf]
            return None
        near = nearest(leaf, names)
        remedy = f"; type ~{f'{parent}.{near}'.lstrip('.')}" if near else ""
        return Problem(key, f"there is nothing of this name to remove{remedy}")
    if problem := _changes_nothing(typed, node, names) or _not_a_number(typed, node):
        return problem
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=True)
    except FAILURES as error:
        return Problem(key, f"cannot be given here: {one_line(error)}")
    return None


def _changes_nothing(typed: Typed, node: Any, names: list[str]) -> Problem | None:
    """Refuse ``{}`` for a mapping with keys, which would be merged, and null for a missing name.

    A step that one augmentation lacks may be a step of another in a sweep, so there the name must
    be close to an existing one.
    """
    key, (parent, _, leaf) = typed.key, typed.key.rpartition(".")
    if typed.value == {}:
        if leaf not in names or not isinstance(node[leaf], DictConfig) or not node[leaf]:
            return None
        remedy = f"to empty it type {key}=null, to remove a key ~{key}.<key>"
        return Problem(key, f"{{}} given, which adds nothing to the existing keys; {remedy}")
    if typed.value is not None or parent not in NAMED or leaf in names:
        return None
    near = nearest(leaf, names)
    if near is None and parent in STEPS:
        return None
    remedy = f"type {parent}.{near}=null" if near else f"leave {key} away"
    there = f"{parent} has {listing(names) or 'none'}"
    return Problem(key, f"null given, which removes nothing: {there}; {remedy}")


def _not_a_number(typed: Typed, node: Any) -> Problem | None:
    """Refuse text for an argument of a library class to which its option gives a number."""
    raw = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    assert isinstance(raw, dict)
    before, target = raw.get(typed.key.rpartition(".")[2]), str(raw.get("_target_"))
    if registry.find(target) or not isinstance(before, int | float) or isinstance(before, bool):
        return None
    if not isinstance(typed.value, str) or "${" in typed.value or family_of(target) is None:
        return None
    said = f"{given(typed.value)} given, expected a number; type {typed.key}={given(before)}"
    return Problem(typed.key, said)


def one_line(error: BaseException) -> str:
    """Cut a message of Hydra's before its list of folders."""
    if isinstance(error, AssertionError):
        return "a list of defaults cannot be read; put its lines with override last"
    text = str(error) or str(error.__cause__)
    for end in ("\nConfig search path:", "\nSee https:", "\n    full_key:"):
        text = text.split(end)[0]
    return " ".join(text.split())

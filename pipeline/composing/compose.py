"""From overrides to a checked config: Hydra composes, and all mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from penstock.pipeline.composing.interpolation import plain, referred_keys, unresolved_keys
from penstock.pipeline.composing.options import CONF, option_file, search_in, store_options
from penstock.pipeline.composing.overrides import Typed, parse, quote, read_overrides
from penstock.pipeline.composing.resolve import resolve
from penstock.pipeline.composing.runs import resume, saved_run
from penstock.pipeline.composing.schema import check, lost_type
from penstock.pipeline.composing.values import given
from penstock.pipeline.config.combinations import check_combinations, suit_model
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.libraries import family_of
from penstock.pipeline.config.places import CHOSEN_BY, NAMED, PRESETS, STEPS
from penstock.pipeline.config.saved import naming_folders

_FAILURES = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


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
        overrides: What one would type: ``["dataset=lmdb", "loader.num_workers=2"]``.
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
    """Compose and check the config that overrides describe.

    Args:
        texts: Overrides as typed.
        command: The command whose settings stand under its name.

    Raises:
        ConfigError: With all mistakes.
    """
    prepare(texts)
    settings = settings_of(command)
    texts = naming_folders(texts, command)
    typed, problems = read_overrides(texts, command=command, settings=tuple(settings)[1:])
    if (file := saved_run(typed, problems, command)) is not None:
        return resume(file, texts, typed, problems, {command: settings} if command else {})
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
                raise ConfigError([Problem("", _one_line(error))]) from error
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
    everything += check_combinations(found, wrong)
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
    """Compose overrides; those that Hydra refuses are left out and added to the problems.

    Raises:
        ConfigError: A file is broken.
    """
    texts = [each.hydra for each in typed]
    doubtful = [each for each in typed if not each.group and _may_change_nothing(each)]
    try:
        composed = compose_texts(texts)
    except _FAILURES:
        composed, typed = diagnose(typed, problems)
    number = _numbers_of_libraries(typed, composed)
    if doubtful or number:
        base = compose_texts([each.hydra for each in typed if each.group])
        problems += [found for each in doubtful if (found := _changes_nothing(each, base))]
        for each in number:
            before = OmegaConf.select(base, each.key, throw_on_missing=False)
            if expected := lost_type(before, each.value):
                text = f"{given(each.value)} given, expected {expected}"
                problems.append(Problem(each.key, f"{text}; type {each.key}={given(before)}"))
    return composed


def diagnose(typed: Sequence[Typed], problems: list[Problem]) -> tuple[DictConfig, list[Typed]]:
    """Find the overrides that Hydra refuses, on top of those that work.

    Choices of groups come first. A group that the defaults lack is appended (``+group=option``).

    Args:
        typed: Overrides whose options exist.
        problems: Gets a problem for each override that is refused.

    Returns:
        The config that the others compose, and these.

    Raises:
        ConfigError: A file is broken.
    """
    good: list[Typed] = []
    config = compose_texts([])
    for each in sorted(typed, key=lambda one: (not one.group, "/" in one.group)):
        tries = [each.hydra]
        if each.group and not each.hydra.startswith("~"):
            tries.append(each.hydra[1:] if each.hydra[0] == "+" else f"+{each.hydra}")
        if each.deleted and not each.group and _holds_null(each.key, config):
            tries.append(f"++{each.key}=0\0{each.hydra}")  # Hydra removes no null
        before = [text for one in good for text in one.hydra.split("\0")]
        failures = []
        for text in tries:
            try:
                config = compose_texts([*before, *text.split("\0")])
            except _FAILURES as error:
                failures.append(error)
                continue
            good.append(Typed(each.text, each.key, each.value, each.group, each.deleted, text))
            break
        else:
            problems.append(_refused(each, config, failures[0]))
            if each.group and not each.deleted:  # a file names something that does not exist
                raise ConfigError(problems)
    return config, good


def _refused(typed: Typed, config: DictConfig, error: Exception) -> Problem:
    key = typed.key
    if typed.group and typed.deleted:
        return Problem(key, "there is no such choice to remove")
    if typed.group:
        return Problem("", _one_line(error))
    if not typed.deleted:
        found = OmegaConf.select(config, key, throw_on_missing=False)
        if isinstance(found, DictConfig) and found:
            names = [str(name) for name in found]
            return Problem(key, f"{given(typed.value)} given, but {listing(names)} stand there; "
                           f"type {key}.{names[0]}=...")  # fmt: skip
        return Problem(key, f"cannot be given here: {_one_line(error)}")
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    near = nearest(leaf, names)
    remedy = f"; type ~{parent + '.' if parent else ''}{near}" if near else ""
    return Problem(key, f"there is nothing of this name to remove{remedy}")


def _holds_null(key: str, config: DictConfig) -> bool:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and leaf in node and node[leaf] is None


def _may_change_nothing(typed: Typed) -> bool:
    parent = typed.key.rpartition(".")[0]
    return not typed.deleted and (typed.value == {} or (typed.value is None and parent in NAMED))


def _changes_nothing(typed: Typed, base: DictConfig) -> Problem | None:
    """Refuse ``{}`` for a mapping with keys, which Hydra would merge, and null for a missing name.

    A step that one augmentation lacks may be a step of another in a sweep, so there the name must
    be close to an existing one.
    """
    key = typed.key
    if typed.value == {}:
        found = OmegaConf.select(base, key, throw_on_missing=False)
        if not isinstance(found, DictConfig) or not found:
            return None
        remedy = f"to empty it type {key}=null, to remove a key ~{key}.<key>"
        return Problem(
            key, f"{{}} given, which adds nothing to the keys that stand there; {remedy}"
        )
    parent, _, name = key.rpartition(".")
    found = OmegaConf.select(base, parent)
    names = [str(each) for each in found] if isinstance(found, DictConfig) else []
    near = nearest(name, names)
    if name in names or (near is None and parent in STEPS):
        return None
    remedy = f"type {parent}.{near}=null" if near else f"leave {key} away"
    there = f"{parent} has {listing(names) or 'none'}"
    return Problem(key, f"null given, which removes nothing: {there}; {remedy}")


def _numbers_of_libraries(typed: Sequence[Typed], config: DictConfig) -> list[Typed]:
    """List the texts that were typed for arguments of library classes."""
    found = []
    raw = OmegaConf.to_container(config, resolve=False)
    for each in typed:
        if isinstance(each.value, (str, int, float)) and not each.group and "." in each.key:
            node: Any = raw
            for name in each.key.split(".")[:-1]:
                node = node.get(name) if isinstance(node, dict) else None
            target = node.get("_target_") if isinstance(node, dict) else None
            if isinstance(target, str) and registry.find(target) is None and family_of(target):
                found.append(each)
    return found


def _one_line(error: BaseException) -> str:
    """Cut a message of Hydra's before its list of folders."""
    text = str(error) or str(error.__cause__)
    for end in ("\nConfig search path:", "\nSee https:", "\n    full_key:"):
        text = text.split(end)[0]
    return " ".join(text.split())

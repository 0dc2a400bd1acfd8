"""From overrides to a checked config: Hydra composes, and all mistakes are reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, safe_load

from penstock.core.registry import find
from penstock.core.user_errors import Problem, listing, nearest
from penstock.datasets.files.passwords import hidden
from penstock.pipeline.config.checks import check_components
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError, is_below, type_nearest
from penstock.pipeline.config.interpolation import plain, referred_keys
from penstock.pipeline.config.libraries import family_of
from penstock.pipeline.config.options import CONF, option_file, search_in, store_options
from penstock.pipeline.config.overrides import Typed, parse, quote, read_overrides, settings_of
from penstock.pipeline.config.places import NAMED, PRESETS, STEPS
from penstock.pipeline.config.resolve import resolve, suit_model
from penstock.pipeline.config.saved import resumed, saved_run, variables_of, with_folders
from penstock.pipeline.config.schema import check
from penstock.pipeline.config.values import given

# Hydra asserts that lines with `override` end a list of defaults.
FAILURES = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


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
    return configure(overrides)


def prepare(overrides: Sequence[str] = ()) -> None:
    """Register the components that overrides and presets import, and give Hydra their options.

    Raises:
        ConfigError: A module to import does not exist.
    """
    typed: list[str] = []
    presets: list[str] = []
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        with suppress(HydraException, YAMLError, AttributeError):  # reported with all overrides
            if key == "imports":  # the last one counts, as for any key
                names: Any = parse(quote(text)).value()
                typed = [str(n) for n in (names if isinstance(names, list) else [names]) if n]
            files = [option_file(key, name) for name in value.strip("[]").split(",")]
            for file in filter(None, files if key in PRESETS else ()):
                presets += safe_load(file.read_text(encoding="utf-8")).get("imports") or ()
    register_components([*typed, *presets])
    store_options()


def configure(texts: Sequence[str], *, command: str | None = None) -> dict[str, Any]:
    """Compose and check the config that overrides describe, with the settings of a command.

    Raises:
        ConfigError: With all mistakes.
    """
    prepare(texts)
    typed, problems = read_overrides(texts, command)
    typed = with_folders(typed)
    file = saved_run(typed, problems, command)
    if {problem.key for problem in problems} & {*PRESETS}:  # a preset chooses anything
        raise ConfigError(problems)
    wrong = _keys_of(problems)
    typed = [each for each in typed if each.group or not is_below(each.key, wrong)]
    variables = frozenset[str]()
    if file is None:
        config = compose_typed(typed, problems, command)
    else:
        config = resumed(file, compose_typed(typed, [], command), typed, problems)
        variables = variables_of(config)
        config.update({command: settings_of(command)} if command else {})
        problems += set_values(config, typed)
    return checked(
        config, typed, problems, command=command, variables=variables, fresh=file is None
    )


def compose_typed(
    typed: Sequence[Typed], problems: list[Problem], command: str | None
) -> DictConfig:
    """Compose typed options, the settings of a command and typed values; `problems` grows.

    Raises:
        ConfigError: Hydra refuses the options, or a file of one of them is broken.
    """
    choices = sorted((each for each in typed if each.group), key=lambda one: "/" in one.group)
    try:
        config = _compose_choices([each.hydra for each in choices])
    except FAILURES as error:
        raise ConfigError([*problems, Problem("", one_line(error))]) from error
    config.update({command: settings_of(command)} if command else {})
    problems += set_values(config, typed)
    return config


def checked(
    config: DictConfig,
    typed: Sequence[Typed],
    problems: Sequence[Problem] = (),
    *,
    command: str | None = None,
    variables: frozenset[str] = frozenset(),
    fresh: bool = False,
) -> dict[str, Any]:
    """Resolve and check a composed config.

    Args:
        config: The config.
        typed: The overrides it was composed with.
        problems: Their problems; nothing at or below the keys of these is reported again.
        command: The command whose settings stand under its name.
        variables: Keys at which a saved config holds values for interpolations.
        fresh: The config is new: implicit choices depend on what is typed.

    Raises:
        ConfigError: With all mistakes.
    """
    resolved, unresolved = plain(config)
    resolved = hidden(resolved)
    resolve(resolved, {each.key for each in typed} if fresh else None)
    found, mistakes = check(
        resolved,
        skip=_keys_of(problems) | unresolved.keys(),
        variables=variables | referred_keys(config),
        typed=frozenset(each.key for each in typed),
        command=command,
    )
    failed = (Problem(key, why) for key, why in unresolved.items() if why)
    everything = [*problems, *failed, *mistakes]
    wrong = _keys_of(everything) | unresolved.keys()
    everything += [*check_components(found, wrong), *suit_model(found, wrong)]
    if everything:
        raise ConfigError(everything)
    return found


def _keys_of(problems: Iterable[Problem]) -> frozenset[str]:
    return frozenset(problem.key.replace("/", ".") for problem in problems)


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


def compose_texts(texts: Sequence[str]) -> DictConfig:
    """Compose by Hydra, unresolved.

    Raises:
        HydraException: It refuses an override or a file; other errors of YAML and OmegaConf too.
    """
    with _as_hydra_1_3():
        config = hydra.compose("config", list(texts))
    OmegaConf.set_struct(config, False)
    return config


def _compose_choices(texts: list[str]) -> DictConfig:
    """Compose options; append those of groups that the lists of defaults lack."""
    try:
        return compose_texts(texts)
    except HydraException as error:
        lacking = re.match(r"Could not override '([\w/]+)'", str(error))
        found = [text for text in texts if lacking and text.startswith(f"{lacking[1]}=")]
        if not found:
            raise
        return _compose_choices([f"+{text}" if text in found else text for text in texts])


def set_values(config: DictConfig, typed: Sequence[Typed]) -> list[Problem]:
    """Set or remove the values that were typed, and return what is wrong with them."""
    values = [each for each in typed if not each.group]
    return [problem for each in values if (problem := _set_value(config, each))]


def _set_value(config: DictConfig, typed: Typed) -> Problem | None:
    parent, _, leaf = typed.key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if typed.deleted and leaf in names:
        del node[leaf]
    elif problem := _changes_nothing(typed, node, names) or _not_a_number(typed, node):
        return problem
    else:
        try:
            OmegaConf.update(config, typed.key, typed.value, merge=True, force_add=True)
        except FAILURES as error:
            return Problem(typed.key, f"cannot be given here: {one_line(error)}")
    return None


def _changes_nothing(typed: Typed, node: Any, names: list[str]) -> Problem | None:
    """Refuse ``{}`` for a mapping with keys, which would be merged, and null for a missing name.

    A step that one augmentation lacks may be a step of another in a sweep, so there the name must
    be close to an existing one.
    """
    key, (parent, _, leaf) = typed.key, typed.key.rpartition(".")
    if typed.value == {} and leaf in names and isinstance(node[leaf], DictConfig) and node[leaf]:
        remedy = f"to empty it type {key}=null, to remove a key ~{key}.<key>"
        return Problem(key, f"{{}} given, which adds nothing to the existing keys; {remedy}")
    is_null = typed.value is None and parent in NAMED and leaf not in names
    if typed.deleted or (is_null and (parent not in STEPS or nearest(leaf, names))):
        form = f"~{parent}.{{}}".replace("~.", "~") if typed.deleted else f"{parent}.{{}}=null"
        there = f"nothing of this name to remove, there is {listing(names) or 'nothing'}"
        return Problem(
            key, there + (type_nearest(leaf, names, form) or f"; leave {typed.text} away")
        )
    return None


def _not_a_number(typed: Typed, node: Any) -> Problem | None:
    """Refuse text for an argument of a library class to which its option gives a number."""
    raw: Any = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    before, target = raw.get(typed.key.rpartition(".")[2]), str(raw.get("_target_"))
    is_number = type(before) in (int, float) and not find(target) and family_of(target)
    if not is_number or not isinstance(typed.value, str) or "${" in typed.value:
        return None
    said = f"{given(typed.value)} given, expected a number; type {typed.key}={given(before)}"
    return Problem(typed.key, said)


def one_line(error: BaseException) -> str:
    """Cut a message of Hydra's before its list of folders."""
    if isinstance(error, AssertionError):
        return "a list of defaults cannot be read; put its lines with override last"
    text = str(error) or str(error.__cause__)
    for end in ("\nConfig search path:", "\nSee https:", "\n    full_key:", "\nTo append"):
        text = text.split(end)[0]
    return " ".join(text.split()).rstrip(".")

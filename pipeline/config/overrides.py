"""Overrides: quoted where Hydra's grammar refuses them, parsed one by one, composed and applied."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from penstock.datasets.files.access import is_url
from penstock.datasets.files.data_files import IMAGE_ENDINGS
from penstock.pipeline.config.composition import (
    STACK_OF,
    Composer,
    CompositionError,
    HydraException,
    Override,
    OverrideType,
    Quote,
    QuotedString,
)
from penstock.pipeline.config.errors import ConfigError, Problem, listing, nearest, nearest_path
from penstock.pipeline.config.hints import (
    REMEDIES,
    foreign_name,
    instead_of_option,
    nearest_option,
    without_dashes,
)
from penstock.pipeline.config.places import CHOSEN_BY, NAMED, STEPS, top_level_keys
from penstock.pipeline.config.values import word

_KEY = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=]*?)(?P<equals>=)(?P<value>.*)", re.DOTALL)


def quote(text: str, composer: Composer, *, sweep: bool = False) -> str:
    """An override with quotes around what Hydra's grammar refuses in its value.

    Args:
        text: As typed: ``dataset.storage.path=фото/a(1).jpg``.
        composer: Knows the grammar.
        sweep: Commas separate values of a sweep.
    """
    match = _KEY.fullmatch(text)
    if match is None or _readable(text, composer):
        return text
    start = f"{match['sign'] or ''}{match['key']}="
    value = match["value"]
    return start + (_quoted_parts(value, composer) if sweep else _quoted(value, composer))


def _quoted(value: str, composer: Composer) -> str:
    inner = value.strip()
    if _readable(f"x={value}", composer):
        return value
    if inner.startswith("[") and inner.endswith("]"):
        return f"[{_quoted_parts(inner[1:-1], composer)}]"
    if inner.startswith("{") and inner.endswith("}"):
        items = [part.partition(":") for part in _split(inner[1:-1])]
        if all(colon and key.strip().isidentifier() for key, colon, _ in items):
            return "{" + ",".join(f"{k}:{_quoted(v.strip(), composer)}" for k, _, v in items) + "}"
    return str(QuotedString(value, Quote.single).with_quotes())


def _quoted_parts(value: str, composer: Composer) -> str:
    return ",".join(_quoted(part, composer) for part in _split(value))


def _split(value: str) -> Iterator[str]:
    """Parts between commas that stand in no brackets and no quotes."""
    depth, start, inside = 0, 0, ""
    for position, character in enumerate(value):
        if inside:
            inside = "" if character == inside else inside
        elif character in "'\"":
            inside = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            yield value[start:position]
            start = position + 1
    yield value[start:]


def _readable(text: str, composer: Composer) -> bool:
    try:
        composer.parse(text)
    except HydraException:
        return False
    return True


def naming_files(texts: Sequence[str]) -> list[str]:
    """Put the overrides that name files, or a folder, in the place of paths that stand among them.

    A pattern that no shell has expanded, such as ``photos/**/*.jpg``, names the files it fits.
    One file of records, such as ``test.csv``, is read in the form that the run has.

    Raises:
        ConfigError: There is nothing at a path, or a folder beside others.
    """
    paths = [text for text in texts if "=" not in text and not text.startswith("~")]
    others = [text for text in texts if text not in paths]
    if not paths:
        return others
    paths = [found for path in paths for found in _expanded(path)]
    problems = [
        Problem(
            path,
            "no such file or folder; "
            + (
                f"type {shlex.quote(near)}"
                if (near := nearest_path(path))
                else "give images, a folder of them, or key=value"
            ),
        )
        for path in paths
        if not is_url(path) and not os.path.exists(path)
    ]
    folders = [path for path in paths if _names_folder(path)]
    if len(paths) > 1 and folders:
        problems.append(Problem(folders[0], "a folder is given alone, or files without one"))
    if problems:
        raise ConfigError(problems)
    quoted = [QuotedString(path, Quote.single).with_quotes() for path in paths]
    if folders:
        data = ["dataset=image_folder", f"dataset.storage.path={quoted[0]}"]
    elif len(paths) == 1 and paths[0].lower().endswith(_RECORD_FILES):
        data = [f"dataset.storage.path={quoted[0]}"]
    else:
        data = ["dataset=image_files", f"dataset.storage.paths=[{','.join(quoted)}]"]
    return [*data, *others]


_RECORD_FILES = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".zip", ".lmdb")


def _expanded(path: str) -> list[str]:
    """The files that a pattern fits, in order; the path itself where it is none, or fits none."""
    if is_url(path) or os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(filter(os.path.isfile, glob.iglob(path, recursive=True))) or [path]


def _names_folder(path: str) -> bool:
    """Whether a path is a folder; a URL is one unless it ends as image files do."""
    return not path.lower().endswith(IMAGE_ENDINGS) if is_url(path) else os.path.isdir(path)


_SOURCE_PART = re.compile(
    r"dataset\.sources\.\w+\."
    r"(?P<group>sampler|dataset|dataset\.(storage|decode|cache|annotations))"
)
_HYDRA_KEYS = ("hydra.launcher", "hydra.sweeper", "hydra/launcher", "hydra/sweeper")


@dataclass(frozen=True, slots=True)
class Choice:
    """Options picked from a group; no options: the group is taken out."""

    group: str
    options: tuple[str, ...]
    listed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """A value changed or deleted."""

    override: Override
    text: str

    @property
    def key(self) -> str:
        """The full key."""
        return self.override.key_or_group


@dataclass(frozen=True, slots=True)
class Parsed:
    """Overrides of one job, in order of their kinds."""

    choices: list[Choice]
    changes: list[Change]
    hydra: list[str]
    problems: list[Problem]


def parse(
    texts: Sequence[str], composer: Composer, *, command: str | None = None,
    command_keys: Sequence[str] = (),
) -> Parsed:  # fmt: skip
    """Parse the overrides of one job.

    Args:
        texts: Overrides as typed, without sweeps.
        composer: Knows the groups and the grammar.
        command: The command whose settings may be given without its name: ``path=x``.
        command_keys: Names of these settings.
    """
    parsed = Parsed([], [], [], [])
    for text in texts:
        quoted = quote(text, composer)
        try:
            override = composer.parse(quoted)
        except HydraException:
            parsed.problems.append(_unreadable(text, texts, composer))
            continue
        if override.is_sweep_override():
            parsed.problems.append(_needs_sweep(override))
        elif override.is_hydra_override():
            _add_hydra(override, quoted, parsed)
        else:
            if override.key_or_group in command_keys:
                key = f"{command}.{override.key_or_group}"
                override = replace(override, key_or_group=key)
            start, _, name = override.key_or_group.rpartition(".")
            group = CHOSEN_BY.get(command or "", {}).get(name) if start == command else None
            if group is not None:
                choice = _choice(replace(override, key_or_group=group), text, composer)
                _add_choice(choice, parsed, typed=override.key_or_group)
                continue
            _add(override, text, composer, parsed)
    return parsed


SIDE_BY_SIDE = ("callback", "logger", *STACK_OF)
"""Groups whose options add to one another: `callback=ema callback=profile` are two."""


def _add_choice(choice: Choice | Problem, parsed: Parsed, *, typed: str = "") -> None:
    """Add a choice; one that there is not is reported by the key that was typed for it."""
    if isinstance(choice, Choice):
        before = [each for each in parsed.choices if each.group == choice.group and each.options]
        if before and choice.options and choice.group in SIDE_BY_SIDE:
            parsed.choices.remove(before[0])
            both = tuple(dict.fromkeys(before[0].options + choice.options))
            choice = replace(choice, options=both, listed=True)
        parsed.choices.append(choice)
        return
    if typed:
        message = choice.message.replace(f"type {choice.key}=", f"type {typed}=")
        choice = Problem(typed, message)
    parsed.problems.append(choice)


def _add(override: Override, text: str, composer: Composer, parsed: Parsed) -> None:
    key, value = override.key_or_group, override.value()
    if not key:
        parsed.problems.append(Problem(text, "no key given; an override is key=value"))
        return
    group = _of_source(key)
    if group is not None and isinstance(value, str):
        choice = _choice(replace(override, key_or_group=group), text, composer)
        if isinstance(choice, Choice):
            choice = replace(choice, group=f"{group}@{key}")
        _add_choice(choice, parsed, typed=key)
        return
    if composer.is_group(key) and not isinstance(value, dict):
        _add_choice(_choice(override, text, composer), parsed)
        return
    problem = _check_key(key, value, override, composer)
    if problem is not None:
        parsed.problems.append(problem)
        return
    if not override.is_delete():
        # Whether a key may be added is not said by a sign in front of it but by what takes it.
        override = replace(override, type=OverrideType.FORCE_ADD, package=None)
    parsed.changes.append(Change(override, text))


def _of_source(key: str) -> str | None:
    """The group of whose options one is chosen for a source of a mix, or None."""
    match = _SOURCE_PART.fullmatch(key)
    return match["group"].replace(".", "/") if match else None


def _choice(override: Override, text: str, composer: Composer) -> Choice | Problem:
    group, value = override.key_or_group, override.value()
    if override.package is not None:
        return Problem(
            f"{group}@{override.package}", f"a group has one place here; type {group}=..."
        )
    if override.is_delete():
        return Choice(group, (), False, text)
    known = composer.options(group)
    if value is None:
        return Choice(group, ("none",) if "none" in known else (), False, text)
    names = [str(name) for name in value] if isinstance(value, list) else [word(value)]
    for name in names:
        if name not in known:
            remedy = instead_of_option(group, name, known)
            return Problem(group, f"no option {name!r}, the options are "
                           f"{listing(known, 30) or 'none'}{remedy}")  # fmt: skip
    return Choice(group, tuple(names), isinstance(value, list), text)


def _check_key(key: str, value: Any, override: Override, composer: Composer) -> Problem | None:
    """A key that cannot be one of a value."""
    shown = "" if override.is_delete() else override.get_value_element_as_str()
    slashed = key.replace(".", "/")
    if isinstance(value, str) and "." in key and composer.is_group(slashed):
        options = composer.options(slashed)
        if value in options or nearest(value, options):
            near = value if value in options else nearest(value, options)
            return Problem(key, f"{value!r} given, but an option of a group is picked with "
                           f"slashes; type {slashed}={near}")  # fmt: skip
    if "/" in key:
        groups = composer.groups()
        near = nearest(key, groups)
        parent = key.rpartition("/")[0]
        if composer.is_group(parent) and near in (None, parent):
            return Problem(key, f"no such group; a value is written with dots: type "
                           f"{key.replace('/', '.')}={shown}")  # fmt: skip
        remedy = f"; type {near}={shown}" if near else ""
        return Problem(key, f"no such group, the groups are {listing(groups, 30)}{remedy}")
    if override.package is not None:
        return Problem(f"{key}@{override.package}", f"no group {key!r}")
    if "." not in key and isinstance(value, str):
        return _misspelt_group(key, value, composer)
    return None


def _misspelt_group(key: str, value: str, composer: Composer) -> Problem | None:
    """Report a misspelt group, such as `optimiser=adam`."""
    if key in top_level_keys():
        return None
    groups = composer.groups()
    below = [group for group in groups if group.endswith(f"/{key}")]
    near = foreign_name(key) or nearest(key, [*groups, *top_level_keys()], cutoff=0.7)
    near = below[0] if below else near
    if near is None or near not in groups:
        return None
    options = composer.options(near)
    option = value if value in options else nearest_option(value, options)
    option = option or f"<option> (options: {listing(options, 30)})"
    return Problem(
        key, f"no such group, the groups are {listing(groups, 30)}; type {near}={option}"
    )


def _add_hydra(override: Override, text: str, parsed: Parsed) -> None:
    """Accept the launcher and the sweeper of a sweep, and report other settings of Hydra."""
    key = override.key_or_group
    if key.startswith(_HYDRA_KEYS):
        parsed.hydra.append(text)
        return
    remedy = REMEDIES.get(key, f"leave {key} away")
    message = f"of Hydra's settings, only hydra/launcher and hydra/sweeper are accepted; {remedy}"
    parsed.problems.append(Problem(key, message))


def _unreadable(text: str, texts: Sequence[str], composer: Composer) -> Problem:
    if text.startswith("-"):
        near = nearest(text.split("=")[0], ("--help", "--cfg", "--multirun", "--config-dir"))
        remedy = f"; did you mean {near}?" if near else "; --help lists them"
        if said := without_dashes(text):
            remedy = f", overrides have no dashes; {said}"
        return Problem(text, f"no such flag{remedy}")
    if "=" not in text and not text.startswith("~"):
        named = {
            group: nearest(text, composer.options(group), cutoff=0.8)
            for group in top_level_keys()
            if composer.is_group(group)
        }
        remedy = _whole(text, texts) or " or ".join(
            f"{group}={option}" for group, option in named.items() if option
        )
        remedy = f"; type {remedy}" if remedy else ""
        return Problem(
            text, f"no value given; an override is key=value, or ~key to take it away{remedy}"
        )
    return Problem(text.split("=")[0], f"{text!r} cannot be read; a key is words with dots between")


def _whole(text: str, texts: Sequence[str]) -> str | None:
    """Put together a value that the shell split at its spaces, in quotes, by its last word."""
    stop = list(texts).index(text) + 1
    starts = [place for place, other in enumerate(texts[:stop]) if "=" in other]
    if not text.endswith(("}", "]")) or not starts:
        return None
    return f"'{' '.join(texts[starts[-1] : stop])}'"


def _needs_sweep(override: Override) -> Problem:
    value = override.get_value_string()
    key = override.key_or_group
    if any(mark in value for mark in ("choice(", "range(", "interval(", "glob(")):
        return Problem(key, f"{value} is a sweep; add -m to run a job for each of its values")
    return Problem(
        key, f"{value} is several values; add -m to run a job for each, type {key}=[{value}] for "
        f"a list, or \"{key}='{value}'\" for a text with commas",
    )  # fmt: skip


def compose_choices(parsed: Parsed, composer: Composer) -> tuple[DictConfig, list[str]]:
    """Compose the options' config, unresolved, and the choices as Hydra takes them.

    Choices for which there is no default are appended.

    Raises:
        ConfigError: A file is broken or names an option that there is not.
    """
    texts = {
        choice.group if choice.options else f"~{choice.group}": _text(choice)
        for choice in parsed.choices
    }
    try:
        config, unused = composer.compose(list(texts.values()))
        while unused:
            key = min(unused, key=len)  # one at a time: it may bring defaults for the others
            if key.startswith("~"):
                parsed.problems.append(Problem(key[1:], "there is no such choice to take away"))
                del texts[key]
            else:
                texts[key] = f"+{texts[key]}"
            config, unused = composer.compose(list(texts.values()))
    except CompositionError as error:
        raise ConfigError([*parsed.problems, Problem("", str(error))]) from error
    return config, list(texts.values())


def _text(choice: Choice) -> str:
    if not choice.options:
        return f"~{choice.group}"
    options = ",".join(choice.options)
    return f"{choice.group}=[{options}]" if choice.listed else f"{choice.group}={options}"


def apply_changes(
    config: DictConfig, parsed: Parsed, composer: Composer, skip: frozenset[str]
) -> list[str]:
    """Apply the changes one by one; returns them as Hydra takes them."""
    accepted = []
    for change in parsed.changes:
        if any(f"{change.key}.".startswith(f"{key}.") for key in skip):
            continue
        if _adds_nothing(change, config):
            text = "{} given, which adds nothing to the keys that stand there"
            remedy = f"to empty it type {change.key}=null, to take a key away ~{change.key}.<key>"
            parsed.problems.append(Problem(change.key, f"{text}; {remedy}"))
            continue
        if (nothing := _takes_nothing_away(change, config)) is not None:
            parsed.problems.append(nothing)
            continue
        texts = [as_hydra(change)]
        if change.override.is_delete() and _holds_null(change.key, config):
            texts.insert(0, f"++{change.key}=0")  # Hydra takes away no null
            composer.apply(config, composer.parse(texts[0]))
        try:
            composer.apply(config, change.override)
        except CompositionError as error:
            parsed.problems.append(_not_applied(change, config, error))
            continue
        accepted += texts
    return accepted


def _holds_null(key: str, config: DictConfig) -> bool:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and leaf in node and node[leaf] is None


def _adds_nothing(change: Change, config: DictConfig) -> bool:
    """Tell whether `{}` is given where keys stand: mappings are merged, so that they would stay."""
    if change.override.is_delete() or change.override.value() != {}:
        return False
    found = OmegaConf.select(config, change.key, throw_on_missing=False)
    return isinstance(found, DictConfig) and bool(found)


def _takes_nothing_away(change: Change, config: DictConfig) -> Problem | None:
    """Refuse null for a name that is not there.

    A step that an augmentation has not may be one of another that a sweep goes over, so there
    the name must be nearly that of one.
    """
    parent, _, name = change.key.rpartition(".")
    if parent not in NAMED or change.override.is_delete() or change.override.value() is not None:
        return None
    found = OmegaConf.select(config, parent)
    names = [str(each) for each in found] if isinstance(found, DictConfig) else []
    near = nearest(name, names)
    if name in names or (near is None and parent in STEPS):
        return None
    remedy = f"type {parent}.{near}=null" if near else f"leave {change.key} away"
    there = f"{parent} has {listing(names) or 'none'}"
    return Problem(change.key, f"null given, which takes away nothing: {there}; {remedy}")


def _not_applied(change: Change, config: DictConfig, error: Exception) -> Problem:
    if not change.override.is_delete():
        found = OmegaConf.select(config, change.key, throw_on_missing=False)
        if isinstance(found, DictConfig) and found:
            text, names = change.override.get_value_element_as_str(), [*map(str, found)]
            return Problem(change.key, f"{text} given, where the keys {listing(names)} stand; "
                           f"type {change.key}.{names[0]}=...")  # fmt: skip
        return Problem(change.key, f"cannot be given here: {error}")
    parent, _, leaf = change.key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    near = nearest(leaf, names)
    remedy = f"; type ~{parent + '.' if parent else ''}{near}" if near else ""
    return Problem(change.key, f"there is nothing of this name to take away{remedy}")


def as_hydra(change: Change) -> str:
    """Write a change in the form that Hydra accepts wherever the key stands."""
    if change.override.is_delete():
        return f"~{change.key}"
    return f"++{change.key}={change.override.get_value_element_as_str()}"

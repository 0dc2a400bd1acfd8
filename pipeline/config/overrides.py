"""Overrides: quoted where Hydra's grammar refuses them, and read one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from penstock.core.user_errors import Problem, listing, nearest
from penstock.pipeline.config.hints import (
    REMEDIES,
    foreign_name,
    instead_of_option,
    nearest_option,
    without_dashes,
)
from penstock.pipeline.config.options import SIDE_BY_SIDE, groups, options_of
from penstock.pipeline.config.places import CHOSEN_BY, PRESETS, top_level_keys

_PARSER = OverridesParser.create()
_KEY = re.compile(r"(?P<key>(?:\+\+|\+|~)?[^=]*?)=(?P<value>.*)", re.DOTALL)
_SOURCE_PART = re.compile(
    r"dataset\.sources\.\w+\."
    r"(?P<group>sampler|dataset|dataset\.(storage|decode|cache|annotations))"
)
_SWEPT = ("hydra.launcher", "hydra.sweeper", "hydra/launcher", "hydra/sweeper")
_FLAGS = ("--help", "--cfg", "--multirun", "--config-dir")


@dataclass(frozen=True, slots=True)
class Typed:
    """An override as it was typed, and as Hydra takes it.

    Attributes:
        text: As typed.
        key: The full key that it changes.
        value: The plain value; a sweep of Hydra's in a sweep.
        group: The group whose option it chooses; empty if it changes a value.
        deleted: It takes the key or the group away.
        hydra: As Hydra takes it.
    """

    text: str
    key: str
    value: Any
    group: str
    deleted: bool
    hydra: str

    @property
    def options(self) -> list[str]:
        """The chosen options."""
        values = self.value if isinstance(self.value, list) else [self.value]
        return [] if self.deleted or self.value is None else [_word(value) for value in values]


def parse(text: str) -> Override:
    """Parse an override by Hydra's grammar.

    Raises:
        HydraException: The grammar refuses it.
    """
    return _PARSER.parse_override(text)


def quote(text: str, *, sweep: bool = False) -> str:
    """Quote the value of an override where Hydra's grammar refuses it.

    Args:
        text: As typed: ``dataset.storage.path=s3://bucket/year=2024``.
        sweep: Commas separate values of a sweep.
    """
    match = _KEY.fullmatch(text)
    if match is None or _readable(text):
        return text
    value = match["value"]
    return f"{match['key']}={_quoted_parts(value) if sweep else _quoted(value)}"


def _quoted(value: str) -> str:
    inner = value.strip()
    if _readable(f"x={value}"):
        return value
    if inner.startswith("[") and inner.endswith("]"):
        return f"[{_quoted_parts(inner[1:-1])}]"
    if inner.startswith("{") and inner.endswith("}"):
        items = [part.partition(":") for part in _split(inner[1:-1])]
        if all(colon and key.strip().isidentifier() for key, colon, _ in items):
            return "{" + ",".join(f"{key}:{_quoted(v.strip())}" for key, _, v in items) + "}"
    return str(QuotedString(value, Quote.single).with_quotes())


def _quoted_parts(value: str) -> str:
    return ",".join(map(_quoted, _split(value)))


def _split(value: str) -> Iterator[str]:
    """Split a value at the commas outside of brackets and quotes."""
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


def _readable(text: str) -> bool:
    try:
        parse(text)
    except HydraException:
        return False
    return True


def read_overrides(
    texts: Sequence[str], *, command: str | None = None, settings: Sequence[str] = (),
    sweep: bool = False,
) -> tuple[list[Typed], list[Problem]]:  # fmt: skip
    """Read overrides.

    Args:
        texts: As typed.
        command: The command whose settings may be typed without its name: ``path=x``.
        settings: The names of these settings.
        sweep: Overrides may have several values.

    Returns:
        The overrides that can be given to Hydra, and the problems of the others.
    """
    found: list[Typed] = []
    problems = []
    for text in texts:
        try:
            override = parse(quoted := quote(text, sweep=sweep))
        except HydraException:
            problems.append(_unreadable(text))
            continue
        if override.key_or_group in settings:
            quoted = re.sub(r"^([+~]*)", rf"\g<1>{command}.", quoted)
            override = replace(override, key_or_group=f"{command}.{override.key_or_group}")
        item = _read(override, text, quoted, command, sweep)
        if isinstance(item, Problem):
            problems.append(item)
            continue
        same = [each for each in found if item.group and each.key == item.key and each.group]
        for before in same:  # the last choice counts, or joins the others
            if before.options and item.options and item.group in SIDE_BY_SIDE and not sweep:
                both = list(dict.fromkeys(before.options + item.options))
                item = replace(item, value=both, hydra=f"{item.group}=[{','.join(both)}]")
            found[found.index(before)] = item
        if not same:
            found.append(item)
    return found, problems


def _read(
    override: Override, text: str, quoted: str, command: str | None, sweep: bool
) -> Typed | Problem:
    key, deleted = override.key_or_group, override.is_delete()
    if not key:
        return Problem(text, "no key given; an override is key=value")
    if override.is_hydra_override():
        if sweep and key.startswith(_SWEPT):
            return Typed(text, key, None, "", deleted, quoted)
        remedy = REMEDIES.get(key, f"leave {key} away")
        if key.startswith(_SWEPT):
            return Problem(key, "only a sweep has a launcher and a sweeper; add -m")
        return Problem(
            key, f"Penstock accepts only hydra/launcher and hydra/sweeper of Hydra; {remedy}"
        )
    if override.is_sweep_override() and not sweep:
        return _needs_sweep(override)
    value = override.value() if not override.is_sweep_override() else None
    typed = Typed(text, key, value, "", deleted, quoted)
    by_command = CHOSEN_BY.get(command or "", {})
    part = _SOURCE_PART.fullmatch(key)
    if key.partition(".")[0] == command and key.partition(".")[2] in by_command:
        return _choice(override, typed, by_command[key.partition(".")[2]])
    if part is not None and (isinstance(value, str) or override.is_sweep_override()):
        return _choice(override, typed, part["group"].replace(".", "/"), place=key)
    if options_of(key) and not isinstance(value, dict):
        return _choice(override, typed, key)
    if problem := _wrong_key(key, value, override):
        return problem
    prefix = "~" if deleted else "++"
    bare = quoted.lstrip("+~")
    return replace(typed, hydra=f"{prefix}{bare.partition('=')[0] if deleted else bare}")


def _choice(override: Override, typed: Typed, group: str, place: str = "") -> Typed | Problem:
    """Read the choice of an option.

    Args:
        override: As Hydra parsed it.
        typed: Its key is reported if the option is unknown.
        group: The group.
        place: The key at which the option stands, if it is not the place of its group.
    """
    if override.package is not None:
        return Problem(
            f"{group}@{override.package}", f"a group has one place here; type {group}=..."
        )
    if isinstance(typed.value, list) and group not in (*SIDE_BY_SIDE, *PRESETS):
        remedy = f"; type {typed.key}={_word(typed.value[0])}" if typed.value else ""
        given = override.get_value_element_as_str()
        return Problem(typed.key, f"{given} given, accepts one option{remedy}")
    known = options_of(group)
    chosen = replace(typed, key=place or group.replace("/", "."), group=group)
    if typed.deleted:
        return replace(chosen, hydra=f"~{group}")
    if typed.value is None and not override.is_sweep_override():
        text = f"{group}=none" if "none" in known else f"~{group}"
        return replace(chosen, value=None, hydra=text)
    for name in _swept_options(override, known) if override.is_sweep_override() else chosen.options:
        if name not in known:
            remedy = instead_of_option(group, name, known)
            remedy = remedy.replace(f"type {group}=", f"type {typed.key}=")
            options = listing(known, 30) or "none"
            return Problem(typed.key, f"no option {name!r}, the options are {options}{remedy}")
    value = typed.hydra.partition("=")[2] if override.is_sweep_override() else chosen.options
    if isinstance(value, list):
        value = f"[{','.join(value)}]" if isinstance(typed.value, list) else value[0]
    at = f"{group}@{place}" if place else group
    if place and "/" not in group:  # a named source is in no list of defaults
        at = f"+{at}"
    return replace(chosen, hydra=f"{at}={value}")


def _swept_options(override: Override, known: Sequence[str]) -> list[str]:
    return [text.strip("'\"") for text in values_of(override, known) if text[:1] != "["]


def values_of(override: Override, options: Sequence[str] = ()) -> list[str]:
    """List the values of a swept override as they are typed; the ends of an interval.

    Args:
        override: As Hydra parsed it.
        options: Options that a glob selects from.
    """
    value: Any = override.value()
    if hasattr(value, "filter"):  # glob(...)
        return list(value.filter(list(options)))
    if override.is_discrete_sweep():
        return [str(text) for text in override.sweep_string_iterator()]
    return [str(value.start), str(value.end)]


def _wrong_key(key: str, value: Any, override: Override) -> Problem | None:
    """Refuse a key that cannot be a value's."""
    no_text = override.is_delete() or override.is_sweep_override()
    shown = "" if no_text else override.get_value_element_as_str()
    slashed = key.replace(".", "/")
    options = options_of(slashed) if "." in key and isinstance(value, str) else []
    if options and (near := value if value in options else nearest(str(value), options)):
        return Problem(key, f"{value!r} given, but an option of a group is picked with slashes; "
                       f"type {slashed}={near}")  # fmt: skip
    if "/" in key:
        group, parent = nearest(key, groups()), key.rpartition("/")[0]
        if options_of(parent) and group in (None, parent):
            return Problem(key, f"no such group; a value is written with dots: type "
                           f"{key.replace('/', '.')}={shown}")  # fmt: skip
        return _no_group(key, f"{group}={shown}" if group else "")
    if override.package is not None:
        return Problem(f"{key}@{override.package}", f"no group {key!r}")
    if "." in key or not isinstance(value, str) or key in top_level_keys():
        return None
    near = foreign_name(key) or nearest(key, [*groups(), *top_level_keys()], cutoff=0.7)
    near = next((group for group in groups() if group.endswith(f"/{key}")), near)
    if near not in groups():
        return None
    options = options_of(near)
    return _no_group(key, f"{near}={nearest_option(value, options) or '<option>'}")


def _no_group(key: str, remedy: str) -> Problem:
    typed = f"; type {remedy}" if remedy else ""
    return Problem(key, f"no such group, the groups are {listing(groups(), 30)}{typed}")


def _unreadable(text: str) -> Problem:
    if text.startswith("-"):
        near = nearest(text.split("=")[0], _FLAGS)
        remedy = f"; did you mean {near}?" if near else "; --help lists them"
        if said := without_dashes(text):
            remedy = f", an override is written without dashes; {said}"
        return Problem(text, f"no such flag{remedy}")
    if "=" not in text and not text.startswith("~"):
        named = {group: nearest(text, options_of(group), cutoff=0.8) for group in top_level_keys()}
        choices = " or ".join(f"{group}={option}" for group, option in named.items() if option)
        what = "no value given; an override is key=value, in quotes if it has spaces"
        return Problem(text, f"{what}; type {choices}" if choices else what)
    return Problem(text.split("=")[0], f"{text!r} cannot be read; a key is words with dots between")


def _needs_sweep(override: Override) -> Problem:
    values = override.get_value_string()
    what = f"{values} is a sweep; add -m to run a job for each value"
    if override.value_type is ValueType.SIMPLE_CHOICE_SWEEP:
        what += f", or write a list as [{values}]"
    return Problem(override.key_or_group, what)


def _word(value: Any) -> str:
    """Write an option as it is typed: YAML reads ``on`` and numbers as other types."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Overrides: quoted where Hydra's grammar refuses them, and read one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from penstock.core.registry import find, option_node
from penstock.core.user_errors import Problem, listing, nearest
from penstock.pipeline.config.hints import INSTEAD, instead_of_option
from penstock.pipeline.config.options import SIDE_BY_SIDE, groups, options_of
from penstock.pipeline.config.places import CHOSEN_BY, PRESETS, top_level_keys
from penstock.pipeline.config.values import shown

_PARSER = OverridesParser.create()
_KEY = re.compile(r"(?P<key>(?:\+\+|\+|~)?[^=]*?)=(?P<value>.*)", re.DOTALL)
_SOURCE_PART = re.compile(
    r"dataset\.sources\.\w+\."
    r"(?P<group>sampler|dataset|dataset\.(storage|decode|cache|annotations))"
)
_SWEPT = ("hydra.launcher", "hydra.sweeper", "hydra/launcher", "hydra/sweeper")


@dataclass(frozen=True, slots=True)
class Typed:
    """An override as it was typed, and as Hydra takes it.

    Attributes:
        text: As typed.
        key: The full key that it changes.
        value: The plain value, or a list of the chosen options.
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
    with suppress(HydraException):
        return bool(parse(text))
    return False


def settings_of(command: str | None) -> dict[str, Any]:
    """Return the settings of a command with their defaults, behind their target."""
    component = find(f"settings/{command}")
    return dict(option_node(component)) if component is not None else {}


def read_overrides(
    texts: Sequence[str], command: str | None = None
) -> tuple[list[Typed], list[Problem]]:
    """Read overrides.

    Args:
        texts: As typed.
        command: The command whose settings may be typed without its name: ``path=x``.

    Returns:
        The overrides that can be given to Hydra, and the problems of the others.
    """
    settings = settings_of(command)
    found: dict[str, Typed] = {}
    problems = []
    for text in texts:
        try:
            override = parse(quoted := quote(text))
        except HydraException:
            problems.append(_unreadable(text))
            continue
        if override.key_or_group in settings.keys() - {"_target_"}:
            quoted = re.sub(r"^([+~]*)", rf"\g<1>{command}.", quoted)
            override = replace(override, key_or_group=f"{command}.{override.key_or_group}")
        item = _read(override, text, quoted)
        if isinstance(item, Problem):
            problems.append(item)
        elif not item.group:
            found[f"{len(found)} {text}"] = item
        else:  # the last choice counts, or joins the others
            before = found.get(item.key)
            if before and before.value and item.value and item.group in SIDE_BY_SIDE:
                both = list(dict.fromkeys(before.value + item.value))
                item = replace(item, value=both, hydra=f"{item.group}=[{','.join(both)}]")
            found[item.key] = item
    typed = list(found.values())
    for name, group in CHOSEN_BY.get(command or "", {}).items():
        key = f"{command}.{name}"
        option = str([settings[name], *(each.value for each in typed if each.key == key)][-1])
        problems += [Problem(group, f"type {key}=...") for each in typed if each.group == group]
        if problem := wrong_option(key, group, option):
            problems.append(problem)
            option = str(settings[name])
        typed.append(Typed("", group, [option], group, False, f"+{group}={option}"))
    return typed, problems


def _read(override: Override, text: str, quoted: str) -> Typed | Problem:
    key, deleted = override.key_or_group, override.is_delete()
    if not key:
        return Problem(text, "no key given; an override is key=value")
    if override.is_hydra_override():
        leave = "add -m" if key.startswith(_SWEPT) else f"leave {key} away"
        return Problem(key, f"only sweeps take settings of Hydra; {INSTEAD.get(key, leave)}")
    if override.is_sweep_override():
        values = override.get_value_string()
        one = f"""; write '{key}=[{values}]' for a list, or '{key}="{values}"' for a text"""
        remedy = f"add -m to run a job for each value{one * override.is_choice_sweep()}"
        return Problem(key, f"{values} is a sweep; {remedy}")
    if override.package is not None:
        return Problem(key, f"@{override.package} given, but a key has one place here")
    value: Any = override.value()
    typed = Typed(text, key, value, "", deleted, quoted)
    if (part := _SOURCE_PART.fullmatch(key)) and isinstance(value, str):
        return _choice(typed, part["group"].replace(".", "/"), place=key)
    if options_of(key) and not isinstance(value, dict):
        return _choice(typed, key)
    if "/" in key:
        remedy = f"{nearest(key, groups(), cutoff=0.9) or key.replace('/', '.')}={shown(value)}"
        return Problem(key, f"no such group, there are {listing(groups(), 30)}; type {remedy}")
    bare = quoted.lstrip("+~")
    return replace(typed, hydra=f"~{bare.partition('=')[0]}" if deleted else f"++{bare}")


def _choice(typed: Typed, group: str, place: str = "") -> Typed | Problem:
    """Read the choice of an option.

    Args:
        typed: Its key is reported if the option is unknown.
        group: The group.
        place: The key at which the option stands, if it is not the place of its group.
    """
    chosen = replace(typed, key=place or group.replace("/", "."), group=group, value=[])
    if typed.deleted:
        return replace(chosen, hydra=f"~{group}")
    if typed.value is None:
        return replace(
            chosen, hydra=f"{group}=none" if "none" in options_of(group) else f"~{group}"
        )
    is_list = isinstance(typed.value, list)
    names = [shown(each) for each in (typed.value if is_list else [typed.value])]
    if is_list and group not in (*SIDE_BY_SIDE, *PRESETS):
        what, one = f"[{','.join(names)}] given", names[0] if names else "..."
        return Problem(typed.key, f"{what}, accepts one option; type {typed.key}={one}")
    for name in names:
        if problem := wrong_option(typed.key, group, name):
            return problem
    plus = "+" if place and "/" not in group else ""  # a named source is in no list of defaults
    at = f"{plus}{group}@{place}" if place else group
    value = f"[{','.join(names)}]" if is_list else names[0]
    return replace(chosen, value=names, hydra=f"{at}={value}")


def wrong_option(key: str, group: str, name: str) -> Problem | None:
    """Return what is wrong with the option of a group that is typed as `key`."""
    if name in (known := options_of(group)):
        return None
    remedy = instead_of_option(group, name, known).replace(f"type {group}=", f"type {key}=")
    return Problem(key, f"no option {name!r}, the options are {listing(known, 30)}{remedy}")


def _unreadable(text: str) -> Problem:
    if "=" in text or text.startswith("~"):
        return Problem(text.split("=")[0], f"{text!r} cannot be read; write key.key=value")
    named = {group: nearest(text, options_of(group), cutoff=0.8) for group in top_level_keys()}
    choices = " or ".join(f"{group}={option}" for group, option in named.items() if option)
    remedy = f"; type {choices}" if choices else ", in quotes if it has spaces"
    return Problem(text, f"no value given; an override is key=value{remedy}")

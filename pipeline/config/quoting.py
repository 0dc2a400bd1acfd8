"""Quotes around what Hydra's grammar refuses in the value of an override."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.config.composition import Composer, HydraException, Quote, QuotedString

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
    quoted = ",".join(_quoted_parts(value, composer)) if sweep else _quoted(value, composer)
    return start + quoted


def _quoted(value: str, composer: Composer) -> str:
    inner = value.strip()
    if _readable(f"x={value}", composer):
        return value
    if inner.startswith("[") and inner.endswith("]"):
        return "[" + ",".join(_quoted_parts(inner[1:-1], composer)) + "]"
    if inner.startswith("{") and inner.endswith("}"):
        items = [part.partition(":") for part in _split(inner[1:-1])]
        if all(colon and key.strip().isidentifier() for key, colon, _ in items):
            return "{" + ",".join(f"{k}:{_quoted(v.strip(), composer)}" for k, _, v in items) + "}"
    return str(QuotedString(value, Quote.single).with_quotes())


def _quoted_parts(value: str, composer: Composer) -> Iterator[str]:
    for part in _split(value):
        yield _quoted(part, composer)


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

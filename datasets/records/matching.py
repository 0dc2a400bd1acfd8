"""Match names in label files with record keys.

A name matches a key if one ends with the other, folder by folder, or does so without extension.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Sequence

log = logging.getLogger(__name__)


def plain(name: str) -> str:
    """Normalize a name to slashes and NFC, without leading ``./``."""
    name = name.replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def stem_of(name: str) -> str:
    """Remove the extension of a name or path: up to five letters and digits, a letter first."""
    stem, _, ending = name.rpartition(".")
    is_ending = len(ending) <= 5 and ending.isalnum() and ending[0].isalpha()
    return stem if stem and is_ending and ending.isascii() else name


def three(names: Sequence[str]) -> str:
    """Quote the first three names."""
    return ", ".join(repr(name[:100]) for name in names[:3])


def match_keys(
    keys: Sequence[str], names: Sequence[str], *, place: str, where: str
) -> list[str | None]:
    """Return the name in a label file for each key, or None; ValueError for ambiguous names."""
    bare, known = [plain(key) for key in keys], set(names)
    entries = [key if key in known else None for key in bare]
    rest = [row for row, entry in enumerate(entries) if entry is None]
    taken = set(entries)
    free = [name for name in names if name not in taken]
    pairs = list(_ends([f"{plain(place).rstrip('/')}/{bare[row]}" for row in rest], free))
    if not pairs and len(rest) == len(keys):  # names longer than the known paths
        pairs = [(row, name) for name, row in _ends(free, bare)]
    for row, name in pairs:
        if (other := entries[rest[row]]) not in (None, free[name]):
            said = f"{other!r} and {free[name]!r} both fit {keys[rest[row]]!r}"
            raise ValueError(f"{where}: {said}; keep one")
        entries[rest[row]] = free[name]
    seen: dict[str, str] = {}
    for key, entry in zip(keys, entries, strict=True):
        if entry is not None and (other := seen.setdefault(entry, key)) != key:
            said = f"{entry!r} may be {other!r} or {key!r}"
            raise ValueError(f"{where}: {said}; name the images there by their paths in the data")
    return entries


def _ends(longs: Sequence[str], shorts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pair each path with the longest path that it ends with, by row; extensions count first."""
    rows: dict[str, list[int]] = {}
    whole = set(shorts)
    for row, short in enumerate(shorts):
        for form in {short} | ({stem_of(short)} - whole):
            rows.setdefault(form, []).append(row)
    most = max((short.count("/") for short in shorts), default=0) + 1
    for long_row, long in enumerate(longs):
        forms = [long.split("/"), stem_of(long).split("/")]
        ends = ("/".join(form[-n:]) for form in forms for n in range(min(most, len(form)), 0, -1))
        found = next((end for end in ends if end in rows), None)
        yield from ((long_row, row) for row in rows.get(found or "", ()))


def matched(
    keys: Sequence[str],
    names: Sequence[str],
    rule: str | None,
    *,
    place: str,
    where: str,
    what: str = "row",
    remedy: str = "type dataset.annotations.missing=empty",
    instead: str = "their annotations are empty",
    its_own: bool = True,
) -> list[str | None]:
    """Match with `match_keys`, and report names and records without a match.

    The rule ``error`` rejects a record without a name, None more than half of them, others none.
    `instead` says what happens to the others.
    """
    entries = match_keys(keys, names, place=place, where=where)
    there = set(entries)
    others = [name for name in names if name not in there]
    said = f"{len(others):,} of {len(names):,} names match no record, such as {three(others)}"
    if keys and names and len(others) == len(names):
        shown = f"records have keys such as {three(keys)}"
        raise ValueError(f"{where}: {said}; {shown}; write the names so, or name their column")
    if others and its_own:
        log.warning("%s: %s; they are left out", where, said)
    missing = [key for key, entry in zip(keys, entries, strict=True) if entry is None]
    if not missing or rule not in (None, "error"):
        return entries
    count = f"{len(missing):,} of {len(keys):,} records have no {what}"
    said = f"{where}: {count}, such as {three(missing)}"
    if rule == "error" or 2 * len(missing) > len(keys):
        raise ValueError(f"{said}; add it, or {remedy}")
    log.warning("%s; %s; to silence this, %s", said, instead, remedy)
    return entries

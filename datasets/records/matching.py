"""Match names in label files with record keys, by one rule for all kinds of files.

A name matches a key if one ends with the other, folder by folder, after both use slashes and NFC.
The storage's own folders count as the beginning of a key. A differing extension is ignored if the
whole name matches no key.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Sequence

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
    bare = [plain(key) for key in keys]
    known = set(names)
    entries = [key if key in known else None for key in bare]
    taken = set(filter(None, entries))
    if len(taken) < sum(entry is not None for entry in entries):  # NFC and NFD forms of one name
        _refuse_doubles(keys, entries, where)
    top = plain(place).rstrip("/")
    forms: tuple[tuple[Callable[[str], str], Callable[[str], str]], ...] = (
        (str, str), (stem_of, str), (str, stem_of), (stem_of, stem_of),
    )  # fmt: skip
    for longer in (False, True):  # try names longer than the known paths last
        if longer and taken:
            break
        for key_form, name_form in forms:
            rows = [row for row, entry in enumerate(entries) if entry is None]
            free = [name for name in names if name not in taken]
            if not rows or not free:
                break
            short = list(map(name_form, free))
            if longer:
                found = _ends(short, [key_form(bare[row]) for row in rows])
                pairs = [(row, name) for name, row in found]
            else:
                pairs = _ends([key_form(f"{top}/{bare[row]}") for row in rows], short)
            for row, name in pairs:
                if entries[rows[row]] not in (None, free[name]):
                    raise ValueError(
                        f"{where}: {entries[rows[row]]!r} and {free[name]!r} both fit the record "
                        f"{keys[rows[row]]!r}; keep one"
                    )
                entries[rows[row]] = free[name]
            _refuse_doubles(keys, entries, where)
            taken.update(filter(None, entries))
    return entries


def _ends(longs: Sequence[str], shorts: Sequence[str]) -> list[tuple[int, int]]:
    """Pair each path with the longest path that it ends with, by row."""
    rows: dict[str, list[int]] = {}
    for row, short in enumerate(shorts):
        rows.setdefault(short, []).append(row)
    depths = sorted({short.count("/") + 1 for short in rows}, reverse=True)
    pairs = []
    for long_row, long in enumerate(longs):
        for depth in depths:
            cut = len(long)
            for _ in range(depth):
                cut = long.rfind("/", 0, cut)
                if cut < 0:
                    break
            if (end := long[cut + 1 :]) in rows and end.count("/") + 1 == depth:
                pairs += [(long_row, row) for row in rows[end]]
                break
    return pairs


def _refuse_doubles(keys: Sequence[str], entries: Sequence[str | None], where: str) -> None:
    seen: dict[str, str] = {}
    for key, entry in zip(keys, entries, strict=True):
        if entry is not None and (other := seen.setdefault(entry, key)) != key:
            raise ValueError(
                f"{where}: {entry!r} may be {other!r} or {key!r}; name the images there by their "
                f"paths in the data"
            )


def matched(
    keys: Sequence[str],
    names: Sequence[str],
    rule: str | None,
    *,
    place: str,
    where: str,
    what: str = "row",
    taken: str = "taken as without objects",
    setting: str = "dataset.annotations.missing=empty",
    its_own: bool = True,
    line_of: Callable[[str], str] | None = None,
) -> list[str | None]:
    """Match with `match_keys`, and report names and records without a match."""
    entries = match_keys(keys, names, place=place, where=where)
    there = set(entries)
    others = [name for name in names if name not in there]
    first = "" if line_of is None or not others else f"{line_of(others[0])}: "
    said = f"{len(others):,} of {len(names):,} names match no record, such as {three(others)}"
    if keys and names and len(others) == len(names):
        raise ValueError(
            f"{where}: {first}{said}; records have keys such as {three(keys)}; write the names so"
            + (", or set dataset.annotations.image_column" if line_of else "")
        )
    if others and its_own:
        log.warning("%s: %s%s; they are left out", where, first, said)
    check_missing(keys, entries, rule, where=where, what=what, taken=taken, setting=setting)
    return entries


def check_missing(
    keys: Sequence[str],
    found: Sequence[object | None],
    rule: str | None,
    *,
    where: str,
    what: str,
    taken: str,
    setting: str,
) -> None:
    """Reject or report the records that a label file does not describe.

    `rule` ``error`` rejects any such record. None rejects more than half of the records and
    otherwise logs a warning. Any other rule accepts all.
    """
    missing = [key for key, one in zip(keys, found, strict=True) if one is None]
    if not missing or rule not in (None, "error"):
        return
    said = f"{where}: {len(missing):,} of {len(keys):,} records have no {what}, such as"
    if rule == "error" or 2 * len(missing) > len(keys):
        raise ValueError(
            f"{said} {three(missing)}; add it, or type {setting}: then they are {taken}"
        )
    name, _, value = setting.partition("=")
    log.warning("%s %s, and are %s; %s=error refuses them, =%s accepts them silently",
                said, three(missing), taken, name, value)  # fmt: skip

"""Recognize the names of splits: train, val and test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SPLIT_OF = {
    "train": "train", "training": "train", "trn": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Split by common word."""
_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(SPLIT_OF)})(?![A-Za-z])", re.IGNORECASE)


def split_named(name: str) -> tuple[str, str] | None:
    """Return the split in `name`, and `name` with ``{}`` in its place; None unless exactly one."""
    found = list(_WORD.finditer(name))
    if len(found) != 1:
        return None
    [word] = found
    return SPLIT_OF[word[0].lower()], f"{name[: word.start()]}{{}}{name[word.end() :]}"


def is_split_word(name: str) -> bool:
    """Return whether a name is a split word, case-insensitive."""
    return name.lower() in SPLIT_OF


def alike(names: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Group names that differ only in the split; yield the group with the shortest names first."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        if (found := split_named(name)) is not None:
            groups.setdefault(found[1].lower(), {}).setdefault(found[0], []).append(name)
    yield from (groups[template] for template in sorted(groups, key=len))


def parts_among(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two of `names` that look like splits of one data set, or None."""
    for found in alike(names):
        if len(found) > 1:
            first, other, *_ = (found[split][0] for split in ("train", "val", "test")
                                if split in found)  # fmt: skip
            return first, other
    return None

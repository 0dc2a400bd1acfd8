"""Recognize the names that data sets give to their parts: train, val and test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SPLIT_OF = {
    "train": "train", "training": "train", "trn": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""The split that each of the usual words names."""
_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(SPLIT_OF)})(?![A-Za-z])", re.IGNORECASE)


def split_named(name: str) -> tuple[str, str] | None:
    """Return the split that one word of `name` names, and the name with ``{}`` for that word."""
    found = list(_WORD.finditer(name))
    if len(found) != 1:
        return None
    [word] = found
    return SPLIT_OF[word[0].lower()], f"{name[: word.start()]}{{}}{name[word.end() :]}"


def is_split_word(name: str) -> bool:
    """Return whether a name is one of the usual words, in any case."""
    return name.lower() in SPLIT_OF


def alike(names: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Group names that differ only in the word for their split.

    Yields:
        Names by split; the group of the shortest names first.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        if (found := split_named(name)) is not None:
            groups.setdefault(found[1].lower(), {}).setdefault(found[0], []).append(name)
    yield from (groups[template] for template in sorted(groups, key=len))


def parts_among(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two of `names` that look like two parts of one data set; None without any."""
    for found in alike(names):
        if len(found) > 1:
            first, other, *_ = (found[split][0] for split in ("train", "val", "test")
                                if split in found)  # fmt: skip
            return first, other
    return None

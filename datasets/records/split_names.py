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


def alike(names: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Group names that differ only in the split; yield the group with the shortest names first."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        words = list(_WORD.finditer(name))
        if len(words) == 1:
            template = _WORD.sub("{}", name).lower()
            of_split = groups.setdefault(template, {})
            of_split.setdefault(SPLIT_OF[words[0][0].lower()], []).append(name)
    yield from (groups[template] for template in sorted(groups, key=len))


def parts_among(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two of `names` that look like splits of one data set, or None."""
    for found in alike(names):
        first = [found[split][0] for split in ("train", "val", "test") if split in found]
        if len(first) > 1:
            return first[0], first[1]
    return None

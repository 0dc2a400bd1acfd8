"""Read fields such as identity, camera or role from file names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Index, RecordAnnotations, RecordsToLabel
from penstock.core.registry import register

_TAKEN = frozenset({"epoch", "image", "index", "key", "label", "position", "size_bytes", "valid"})
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_CLASSES = 1 << 20  # more distinct numbers are not classes


@register("annotations", "filename")
class FilenameFields:
    r"""Read fields from file names: each named group of a regular expression is a field.

    A group that only matches integers becomes an int (-1 if absent) and an index column. Other
    groups become a str (empty if absent).

    The pattern searches the key, which is the path below the data's folder. The default reads
    names such as ``0002_c1s1_000451_03.jpg`` of Market-1501 and DukeMTMC into ``identity`` 2 and
    ``camera`` 1, and the folders ``query/`` and ``gallery/`` into ``role``.

    Args:
        pattern: The regular expression.
    """

    def __init__(
        self,
        pattern: str = (r"(?:(?P<role>query|gallery)/)?(?P<identity>-?\d+)_c(?P<camera>\d+)[^/]*$"),
    ) -> None:
        self.pattern = pattern

    def of(self, records: RecordsToLabel) -> list[FoundFields]:
        """Read the fields of records; see `core.contracts.Annotations`."""
        where = f"{records.storage}, annotations filename"
        pattern = self._compiled(where)
        columns = _numbers(pattern, records.keys, where)
        for name in records.classes:
            if name in pattern.groupindex and name not in columns:
                raise ValueError(
                    f"{where}: {name!r} is a whole number in the training part and not in this; "
                    f"give both parts names of one kind"
                )
        return [FoundFields(records.storage.index, pattern, columns, records.classes)]

    def _compiled(self, where: str) -> re.Pattern[str]:
        said = f"{where}: dataset.annotations.pattern {self.pattern!r}"
        example = r"for example '(?P<identity>\d+)_c(?P<camera>\d+)'"
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{said} is not a regular expression ({error}); {example}") from error
        if not pattern.groupindex:
            raise ValueError(f"{said} lacks a named group; {example}")
        if taken := sorted(_TAKEN & pattern.groupindex.keys()):
            raise ValueError(
                f"{said} has a group {taken[0]!r}, which is a field of every sample; name it "
                f"otherwise (classes come by dataset.storage.labels=filename and label_pattern)"
            )
        return pattern


class FoundFields(RecordAnnotations):
    """The fields of every record.

    `columns` are the integer fields, int64 [n], and `classes` the numbers of the training split, as
    names. Workers receive neither.
    """

    def __init__(
        self,
        index: Index,
        pattern: re.Pattern[str],
        columns: dict[str, NDArray[np.int64]],
        classes: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._index = index
        self._pattern = pattern
        self._numbers = frozenset(columns)
        self.columns = columns
        self.classes: dict[str, tuple[str, ...]] = {}
        for name, column in columns.items():
            numbers = np.unique(column)
            if name in classes:
                self.classes[name] = classes[name]
            elif len(numbers) <= _CLASSES:
                self.classes[name] = tuple(map(str, numbers[numbers >= 0].tolist()))

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the fields of the records at `indices`, int64 [n]."""
        found = []
        for key in self._index.keys(indices):
            match = self._pattern.search(key)
            assert match is not None  # `_numbers` checked every key
            found.append(
                {
                    name: int(value or -1) if name in self._numbers else value or ""
                    for name, value in match.groupdict().items()
                }
            )
        return found

    def fingerprint(self) -> str:
        """Hash the pattern; pattern and keys determine the fields."""
        return hashlib.blake2b(self._pattern.pattern.encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "columns": {}, "classes": {}}


def _numbers(
    pattern: re.Pattern[str], keys: Sequence[str], where: str
) -> dict[str, NDArray[np.int64]]:
    """Return the columns of the integer groups."""
    found = [pattern.search(key) for key in keys]
    missing = [key for key, match in zip(keys, found, strict=True) if match is None]
    if missing:
        raise ValueError(
            f"{where}: the pattern {pattern.pattern!r} is not found in {len(missing):,} of "
            f"{len(keys):,} names, such as {missing[0]!r}; change dataset.annotations.pattern, or "
            f"remove these files"
        )
    numbers: dict[str, NDArray[np.int64]] = {}
    for name in pattern.groupindex:
        values = [match[name] or "" for match in found if match is not None]
        filled = set(values) - {""}
        if filled and all(map(_NUMBER.fullmatch, filled)):
            numbers[name] = np.array([int(value or -1) for value in values], np.int64)
    return numbers

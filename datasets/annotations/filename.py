"""What file names say: identity, camera, role, or whatever a pattern finds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.protocols import RecordsToLabel
from pipeline.registry import register

_TAKEN = frozenset({"epoch", "image", "index", "key", "label", "position", "size_bytes", "valid"})
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_CLASSES = 1 << 20  # above so many different numbers, they are no classes


@register("annotations", "filename")
class FilenameFields:
    r"""Fields from file names: a named group of a regular expression is a field of that name.

    A group that is a whole number wherever it is found gives an int, -1 where it is not found,
    and a column of the index; any other gives a str, empty where it is not found.

    The pattern is looked for in the key, the path below the data's folder. The one that is set
    reads names such as ``0002_c1s1_000451_03.jpg``, as Market-1501 and DukeMTMC have them, into
    ``identity`` 2 and ``camera`` 1, and the folders ``query/`` and ``gallery/`` into ``role``.

    Args:
        pattern: The regular expression.
    """

    def __init__(
        self,
        pattern: str = (r"(?:(?P<role>query|gallery)/)?(?P<identity>-?\d+)_c(?P<camera>\d+)[^/]*$"),
    ) -> None:
        self.pattern = pattern

    def of(self, records: RecordsToLabel) -> list[FoundFields]:
        """The fields of a storage's records; see `datasets.protocols.Annotations`."""
        where = f"{records.storage}, annotations filename"
        pattern = self._compiled(where)
        data = records.storage.fingerprint()

        def build(path: Any) -> None:
            numbers, texts = _read(pattern, records.keys, where)
            write_index(
                path,
                keys=[key.encode() for key in records.keys],
                columns=numbers,
                metadata={"texts": texts},
            )

        index = cached_index(
            {"annotations": "filename", "pattern": self.pattern, "data": data},
            build=build,
            is_current=lambda index: True,
        )
        for name in records.classes:
            if name in pattern.groupindex and name not in index.columns:
                raise ValueError(
                    f"{where}: {name!r} is a whole number in the training part and not in this; "
                    f"give both parts names of one kind"
                )
        return [FoundFields(index, self.pattern, tuple(index.metadata["texts"]), records.classes)]

    def _compiled(self, where: str) -> re.Pattern[str]:
        said = f"{where}: dataset.annotations.pattern {self.pattern!r}"
        example = r"for example '(?P<identity>\d+)_c(?P<camera>\d+)'"
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{said} is no regular expression ({error}); {example}") from error
        if not pattern.groupindex:
            raise ValueError(f"{said} has no named group; {example}")
        if taken := sorted(_TAKEN & pattern.groupindex.keys()):
            raise ValueError(
                f"{said} has a group {taken[0]!r}, which is a field of every sample; name it "
                f"otherwise (classes come by dataset.storage.labels=filename and label_pattern)"
            )
        return pattern


class FoundFields:
    """The fields of every record; satisfies `protocols.RecordAnnotations`.

    Args:
        index: Keys of the records, with a column for each field that is a number.
        pattern: What finds the others, by their names in `texts`, in a key.
        texts: Names of the others.
        classes: The numbers that the training part has, as names; empty: those found here.
    """

    def __init__(
        self,
        index: Index,
        pattern: str,
        texts: tuple[str, ...],
        classes: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._index = index
        self._pattern = re.compile(pattern)
        self._texts = texts
        self.classes: dict[str, tuple[str, ...]] = {}
        for name in index.columns:
            numbers = np.unique(index.column(name))
            if name in classes:
                self.classes[name] = classes[name]
            elif len(numbers) <= _CLASSES:
                self.classes[name] = tuple(map(str, numbers[numbers >= 0].tolist()))

    @property
    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The numbers, int64 [n], by field."""
        return {name: self._index.column(name) for name in self._index.columns}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Fields of the records at `indices`, int64 [n]."""
        names = self._index.columns
        columns = [self._index.values(name, indices).tolist() for name in names]
        rows = zip(*columns, strict=True) if columns else ((),) * len(indices)
        fields: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
        if self._texts:
            for record, key in zip(fields, self._index.keys(indices), strict=True):
                match = self._pattern.search(key)
                assert match is not None  # every key was matched when the index was written
                record |= {name: match[name] or "" for name in self._texts}
        return fields

    def fingerprint(self) -> str:
        """Hash of the pattern: the fields follow from it and from the keys."""
        return hashlib.blake2b(self._pattern.pattern.encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "classes": {}}  # a worker reads records, and needs no names


def _read(
    pattern: re.Pattern[str], keys: Sequence[str], where: str
) -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    """Columns of the groups that are numbers, and names of the others."""
    found = [pattern.search(key) for key in keys]
    missing = [key for key, match in zip(keys, found, strict=True) if match is None]
    if missing:
        raise ValueError(
            f"{where}: the pattern {pattern.pattern!r} is not found in {len(missing):,} of "
            f"{len(keys):,} names, such as {missing[0]!r}; change dataset.annotations.pattern, or "
            f"remove these files"
        )
    numbers: dict[str, NDArray[np.int64]] = {}
    texts = []
    for name in pattern.groupindex:
        values = [match[name] or "" for match in found if match is not None]
        filled = set(values) - {""}
        if filled and all(map(_NUMBER.fullmatch, filled)):
            numbers[name] = np.array([int(value or -1) for value in values], np.int64)
        else:
            texts.append(name)
    return numbers, texts

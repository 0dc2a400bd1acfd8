"""Read fields such as identity, camera or role from file names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import Found, LabelSource, RecordFields

_TAKEN = {"epoch", "image", "index", "key", "label", "position", "size_bytes", "valid"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@register("annotations", "filename")
@dataclass
class FilenameFields:
    r"""Read fields from file names: each named group of a regular expression is a field.

    A group that only matches integers becomes an int (-1 if absent) and an index column, other
    groups a str. The default reads names of Market-1501, ``query/0002_c1s1_000451_03.jpg``.

    Args:
        pattern: The regular expression, which searches the path below the data's folder.
    """

    pattern: str = r"(?:(?P<role>query|gallery)/)?(?P<identity>-?\d+)_c(?P<camera>\d+)[^/]*$"

    def of(self, records: RecordsToLabel) -> list[RecordFields]:
        where = f"{records.storage}, dataset.annotations.pattern {self.pattern!r}"
        source = LabelSource(self, records, where)
        return [RecordFields(source.table(lambda: self._read(source)))]

    def _read(self, source: LabelSource) -> Found:
        where, keys, known = source.where, source.records.keys, source.records.classes
        try:
            pattern = re.compile(self.pattern)
            names = pattern.groupindex.keys()
            if not names or _TAKEN & names:
                raise re.error(
                    f"groups need names, such as (?P<identity>...), but not {sorted(_TAKEN)}"
                )
        except re.error as error:
            raise ValueError(f"{where}: {error}; correct it") from error
        found = [pattern.search(key) for key in keys]
        if None in found:
            count = f"{found.count(None):,} of {len(found):,} names"
            missing = keys[found.index(None)]
            raise ValueError(f"{where} is not found in {count}, such as {missing!r}; change it")
        fields: list[dict[str, Any]] = [match.groupdict("") for match in found if match]
        columns, classes = {}, {}
        for name in names:
            filled = {each[name] for each in fields} - {""}
            if filled and all(map(_NUMBER.fullmatch, filled)):
                for each in fields:
                    each[name] = int(each[name] or -1)
                columns[name] = np.array([each[name] for each in fields], np.int64)
                numbers = np.unique(columns[name])
                classes[name] = known.get(name) or list(map(str, numbers[numbers >= 0].tolist()))
            elif name in known:
                said = "is a whole number in the training part and not here"
                raise ValueError(f"{where}: {name!r} {said}; change the pattern")
        return Found(fields, classes, columns)

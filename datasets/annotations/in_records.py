"""Name the classes of boxes, masks, keypoints and values inside the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.records.label_files import find_mark

_OF_PACKING = ("crc32", "size_bytes")


@register("annotations", "in_records")
class InRecords:
    """Use boxes, masks, keypoints and values inside the records, and name their classes.

    Args:
        classes: Class names, or their number, by field: ``box_labels``, ``mask``, ``keypoints``,
            ``labels`` or ``values``; null: the names that ``pack`` wrote beside the records.
    """

    def __init__(self, *, classes: Mapping[str, list[str] | int] | None = None) -> None:
        self.classes = {
            field: tuple(map(str, range(names))) if isinstance(names, int) else tuple(names)
            for field, names in (classes or {}).items()
        }

    def of(self, records: RecordsToLabel) -> list[NamedFields]:
        where = f"{records.storage}, annotations in_records"
        mark = find_mark(records.place)
        kept = {} if mark is None else mark.field_classes
        settled = {k: names for k, names in records.classes.items() if k != "label"}
        for field in settled.keys() - self.classes.keys():
            if kept.get(field, settled[field]) != settled[field]:
                said = f"{', '.join(kept[field])}, expected {', '.join(settled[field])}"
                remedy = "pack all parts with the same classes"
                raise ValueError(f"{where}: its classes of {field} are {said}; {remedy}")
        classes = {**kept, **settled, **self.classes}
        if not classes:
            said = f"pack kept no names of classes beside {records.place}; give them by field"
            raise ValueError(f"{where}: {said}: dataset.annotations.classes.mask=[sky,road]")
        columns: dict[str, NDArray[Any]] = {}
        if mark is not None and mark.keys(np.arange(len(mark))) == list(records.keys):
            known = (*records.storage.index.columns, *_OF_PACKING)
            columns = {name: mark.column(name) for name in mark.columns if name not in known}
        return [NamedFields(classes, columns)]


class NamedFields(RecordAnnotations):
    """Class names, and the columns that packing wrote, which workers do not receive."""

    def __init__(
        self, classes: Mapping[str, tuple[str, ...]], columns: Mapping[str, NDArray[Any]]
    ) -> None:
        self.classes, self.columns = classes, columns

    def __getstate__(self) -> dict[str, Any]:
        return {"classes": self.classes, "columns": {}}

    def fingerprint(self) -> str:
        return ""  # the storage's fingerprint suffices

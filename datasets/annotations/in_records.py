"""Name the classes of boxes, masks, keypoints and values inside the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.records.label_files import find_mark
from penstock.datasets.records.table import Table

_OF_PACKING = ("crc32", "size_bytes")


@register("annotations", "in_records")
class InRecords:
    """Use boxes, masks, keypoints and values inside the records, and name their classes.

    ``pack`` writes the class names beside the records, and the columns that ``sampler=weighted``
    counts.

    Args:
        classes: Class names, or their number, by the field with their ids: ``box_labels``,
            ``mask``, ``keypoints``, ``labels`` or ``values``. Other fields use the names from
            ``pack``.
    """

    def __init__(self, *, classes: Mapping[str, list[str] | int] | None = None) -> None:
        self.classes = {
            field: tuple(map(str, range(names))) if isinstance(names, int) else tuple(names)
            for field, names in (classes or {}).items()
        }

    def of(self, records: RecordsToLabel) -> list[NamedFields]:
        """Return the class names of a storage; see `core.contracts.Annotations`."""
        where = f"{records.storage}, annotations in_records"
        mark = find_mark(records.place)
        kept = {} if mark is None else mark.field_classes
        settled_classes = {k: names for k, names in records.classes.items() if k != "label"}
        for field, settled in settled_classes.items():
            if field not in self.classes and kept.get(field, settled) != settled:
                raise ValueError(
                    f"{where}: its classes of {field} are {', '.join(kept[field])}, expected "
                    f"{', '.join(settled)}; pack all parts from data with the same classes"
                )
        classes = {**kept, **settled_classes, **self.classes}
        if not classes:
            raise ValueError(
                f"{where}: pack kept no names of classes beside {records.place}; give them by the "
                f"field that holds their ids, such as dataset.annotations.classes.mask=[sky,road]"
            )
        named = NamedFields(classes, mark, records.storage.index.columns)
        if mark and named.columns and mark.keys(np.arange(len(mark))) != list(records.keys):
            raise ValueError(
                f"{where}: {records.place} has other records ({len(records.keys):,}) than were "
                f"packed ({len(mark):,}); pack the data again"
            )
        return [named]


class NamedFields(RecordAnnotations):
    """Class names, and the columns that packing wrote."""

    def __init__(
        self, classes: Mapping[str, tuple[str, ...]], mark: Table | None, known: Sequence[str]
    ) -> None:
        self.classes = classes
        self._mark = mark
        self._names = [n for n in mark.columns if n not in (*known, *_OF_PACKING)] if mark else []

    @property
    def columns(self) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """Return columns for the index, each [n]."""
        mark = self._mark
        return {} if mark is None else {name: mark.column(name) for name in self._names}

    def fingerprint(self) -> str:
        """Return an empty text: the storage's fingerprint suffices."""
        return ""

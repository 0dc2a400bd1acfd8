"""Read masks from a folder with one image file per image."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import Found, LabelSource, RecordFields
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.labels import read_class_names
from penstock.datasets.records.table import Table


@register("annotations", "mask_folder")
@dataclass
class MaskFolder:
    """Read masks from a folder of PNG files with class ids or palette colours, one per image.

    Records get ``mask``, the file's bytes, which ``dataset.decode`` turns into class ids, integer
    [H, W]. A missing mask makes its record bad.

    Args:
        path: The folder, in the data's folder or beside it; ``{part}`` is train or val.
        classes: Class names by id, or their number; null: the lines of ``classes.txt`` there.
        ending: The end of mask names in place of the image's extension, such as ``_mask.png``.
    """

    path: str = "masks/{part}"
    _: KW_ONLY
    classes: list[str] | int | None = None
    ending: str = ".png"

    def of(self, records: RecordsToLabel) -> list[MaskFiles]:
        source = LabelSource.find(self, records, "folder", self.path)
        remedy = "name the end of their names by dataset.annotations.ending=_mask.png"
        files = source.match_files(self.ending, what="mask", remedy=remedy)
        given = range(self.classes) if isinstance(self.classes, int) else self.classes or ()
        names = tuple(map(str, given)) or records.classes.get("mask")
        names = names or read_class_names(source.path, where=source.where)
        masks = [
            {"mask": os.path.relpath(file.path, source.path), "bytes": file.size_bytes}
            for file in filter(None, files)
        ]
        table = source.table(lambda: Found(masks, {}, {}))
        state = signature_of(files=source.files)
        return [MaskFiles(table, source.path, {} if names is None else {"mask": names}, state)]


class MaskFiles(RecordFields):
    """A mask file for each record."""

    def __init__(
        self, table: Table, folder: str, classes: Mapping[str, tuple[str, ...]], state: str
    ) -> None:
        super().__init__(table)
        self._folder, self.classes, self._state = folder, classes, state

    def state(self) -> str:
        return self._state

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, Any] | str]:
        found: list[Any] = super().fields(indices)
        return [self._field(fields["mask"]) for fields in found]

    def _field(self, name: str) -> dict[str, Any] | str:
        try:
            return {"mask": read_file(f"{self._folder}/{name}", root=self._folder)}
        except MissingFile as error:
            return f"its mask {error}"

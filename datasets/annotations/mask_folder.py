"""Read masks from a folder with one image file per image."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordAnnotations, RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.rows import LabelSource
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.label_files import find_labels, matched_files
from penstock.datasets.records.labels import read_class_names
from penstock.datasets.records.table import Table


@register("annotations", "mask_folder")
class MaskFolder:
    """Read masks from a folder of PNG files with class ids or palette colours, one per image.

    Records get ``mask``, the file's bytes, which ``dataset.decode`` turns into class ids, integer
    [H, W]. A missing mask makes its record bad.

    Args:
        path: The folder, in the data's folder or beside it; ``{part}`` is train or val. Names match
            keys, in the same subfolders or without them.
        classes: Class names by id, or their number; null: the lines of ``classes.txt`` in the
            folder.
        ending: Extension of the mask files.
        suffix: End of mask names that image names lack, as in ``street_mask.png``.
    """

    def __init__(
        self,
        path: str = "masks/{part}",
        *,
        classes: list[str] | int | None = None,
        ending: str = "png",
        suffix: str = "",
    ) -> None:
        self.path = path
        names = map(str, range(classes)) if isinstance(classes, int) else classes
        self.classes = None if names is None else tuple(names)
        self.ending = ending
        self.suffix = suffix

    def of(self, records: RecordsToLabel) -> list[MaskFiles]:
        """Find the masks of records; see `core.contracts.Annotations`."""
        folder, where = find_labels("mask_folder", "folder", self.path, records)
        ending = f"{self.suffix}.{self.ending.lstrip('.')}"
        files = matched_files(
            records, folder, ending, "error", where=where, what="mask",
            taken="found by these names",
            setting="dataset.annotations.suffix=_mask dataset.annotations.ending=png",
        )  # fmt: skip
        found = [file for file in files if file is not None]
        sizes = np.array([file.size_bytes for file in found], np.int64)
        table = Table([os.path.relpath(file.path, folder) for file in found], {"size_bytes": sizes})
        source = LabelSource("mask_folder", {"folder": folder}, records, files, where)
        index = source.index("mask", lambda: (table, {}))
        classes = self.classes or records.classes.get("mask")
        if classes is None:
            classes = read_class_names(folder, where=where)
        return [MaskFiles(folder, index, classes)]


class MaskFiles(RecordAnnotations):
    """A mask file for each record."""

    def __init__(self, folder: str, index: Table, classes: tuple[str, ...] | None) -> None:
        self._folder = folder
        self._index = index
        self.classes = {} if classes is None else {"mask": classes}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, bytes] | str]:
        """Return the mask of each of `indices`, int64 [n], or the cause of a bad record."""
        fields: list[dict[str, bytes] | str] = []
        top = os.fsencode(self._folder) + b"/"
        for name in self._index.raw_keys(indices):
            try:
                fields.append({"mask": read_file(top + name, root=self._folder)})
            except MissingFile as error:
                fields.append(f"its mask {error}")
        return fields

    def fingerprint(self) -> str:
        """Hash the masks' names and sizes."""
        return self._index.fingerprint()

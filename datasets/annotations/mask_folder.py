"""Masks as image files, one for each image, in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.rows import LabelSource
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.index import Index
from penstock.datasets.records.label_files import find_labels, matched_files
from penstock.datasets.records.labels import read_class_names


@register("annotations", "mask_folder")
class MaskFolder:
    """Masks as PNG files of class ids or palette colours, one for each image, in their own folder.

    Records get ``mask``, the file's bytes, which ``dataset.decode`` turns into class ids,
    integer [H, W]. An image whose mask is gone is a bad record.

    Args:
        path: The folder, in the data's or beside it; ``{part}`` is train or val. A key finds its
            mask by its name, in the same folders here or without them.
        classes: Names of the classes by id, or how many there are; null: the lines of
            ``classes.txt`` in the folder.
        ending: Ending of the mask files.
        suffix: End of the masks' names that the images' names lack, as in ``street_mask.png``.
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
        """Find the masks of a storage's records; see `core.contracts.Annotations`."""
        folder, where = find_labels("mask_folder", "folder", self.path, records)
        ending = f"{self.suffix}.{self.ending.lstrip('.')}"
        files = matched_files(
            records, folder, ending, "error", where=where, what="mask",
            taken="found by these names",
            setting="dataset.annotations.suffix=_mask dataset.annotations.ending=png",
        )  # fmt: skip
        found = [file for file in files if file is not None]
        content = {
            "keys": [os.path.relpath(file.path, folder) for file in found],
            "columns": {"size_bytes": np.array([file.size_bytes for file in found], np.int64)},
        }
        source = LabelSource("mask_folder", {"folder": folder}, records, files, where)
        index = source.index("mask", lambda: (content, {}, {}))
        classes = self.classes or records.classes.get("mask")
        if classes is None:
            classes = read_class_names(folder, where=where)
        return [MaskFiles(folder, index, classes)]


class MaskFiles:
    """A mask file for each record; satisfies `RecordAnnotations`.

    Args:
        folder: Where they lie.
        index: Their names below it.
        classes: Names of the classes by id.
    """

    columns: Mapping[str, NDArray[np.int32]] = {}

    def __init__(self, folder: str, index: Index, classes: tuple[str, ...] | None) -> None:
        self._folder = folder
        self._index = index
        self.classes = {} if classes is None else {"mask": classes}

    def fields(self, indices: NDArray[np.int64]) -> list[dict[str, bytes] | str]:
        """The masks at `indices`, int64 [n], or why there is none."""
        fields: list[dict[str, bytes] | str] = []
        top = os.fsencode(self._folder) + b"/"
        for name in self._index.raw_keys(indices):
            try:
                fields.append({"mask": read_file(top + name, root=self._folder)})
            except MissingFile as error:
                fields.append(f"its mask {error}")
        return fields

    def fingerprint(self) -> str:
        """Hash of the masks' names and sizes."""
        return self._index.fingerprint()

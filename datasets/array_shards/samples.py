"""A storage whose records are files, a sample each, that hold arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.data_files import scan_files
from penstock.datasets.records.index import Index, IndexContent, is_unchanged
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import FileLabels, check_labels, class_ids


class SampleFiles(IndexedStorage):
    """Files of arrays below a folder, a sample each. Their keys are paths below it.

    Nothing but their names is looked at before they are read, and none stays open.

    Args:
        name: What the storage is called.
        path: The folder.
        endings: Of the files.
        load: The fields in a file, of its path, the folder's, and the bytes that a record may
            take; ValueError where it is damaged or too large, `MissingFile` of
            `datasets.files.access` where it is gone.
        labels: Where their labels come from; with the source ``file`` from the files' own
            ``label``, which is not used otherwise.
        classes: Class names by id; None: those found.
    """

    def __init__(
        self,
        name: str,
        path: str,
        *,
        endings: tuple[str, ...],
        load: Callable[[str, str, int], dict[str, Any]],
        labels: FileLabels,
        classes: list[str] | None,
    ) -> None:
        self.name = name
        self.path = path
        self.endings = endings
        self.classes = None if classes is None else tuple(classes)
        self.rows, self.labels = False, labels
        self._load = load

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; one that is damaged or gone is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        return self.records(indices, map(self._fields, self.index.raw_keys(indices)))

    def _fields(self, key: bytes) -> dict[str, Any] | str:
        """The fields in a file but the label, or why there are none."""
        try:
            path = os.path.join(self.path, os.fsdecode(key))
            found = self._load(path, self.path, self.max_record_bytes)
        except (MissingFile, ValueError) as error:
            return " ".join(str(error).split())
        return {name: _plain(value) for name, value in found.items() if name != "label"}

    def mark(self) -> Any:
        """State of the file of labels, if there is one; of the folders see `is_current`."""
        if not os.path.isdir(self.path):
            what = "a file" if os.path.exists(self.path) else "nothing there"
            raise ValueError(
                f"{self}: expected a folder of files with a sample each, got {what}; set "
                f"dataset.storage.path"
            )
        return self.labels.csv_version()

    def is_current(self, index: Index, mark: Any) -> bool:
        """Whether labels and folders are as they were; the files are not looked at."""
        unchanged = super().is_current(index, mark)
        return unchanged and is_unchanged(self.path, index.metadata["folders"], index)

    def scan(self) -> IndexContent:
        """Look through the folders, and into the files if the labels are in them."""
        found = scan_files(self.path, endings=self.endings)
        if not found.keys:
            others = ", ".join(name.decode(errors="backslashreplace") for name in found.others)
            raise ValueError(
                f"{self}: no {' or '.join(self.endings)} file found, among "
                f"{others or 'no files at all'}; set dataset.storage.path"
            )
        content: IndexContent = {
            "keys": found.keys,
            "columns": {"size_bytes": found.size_bytes},
            "metadata": {"folders": found.folders},
        }
        if self.labels.source == "file":
            ids, names = self._labels_inside(found.keys)
            columns = {**content["columns"], "label": ids}
            return {**content, "columns": columns, "class_names": names}
        if self.labels.source is not None:
            return self.labels.add_to(content, self.classes, where=str(self))
        return content

    def _labels_inside(self, keys: list[bytes]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Class ids, or the ids of class names, that stand in the files."""
        found = []
        for key in keys:
            name = os.fsdecode(key)
            try:
                path = os.path.join(self.path, name)
                label = _plain(self._load(path, self.path, self.max_record_bytes).get("label"))
            except (MissingFile, ValueError) as error:
                raise ValueError(f"{self}: {name}: {error}; repair or remove it") from error
            if not isinstance(label, int | str) or isinstance(label, bool):
                raise ValueError(
                    f"{self}: {name}: its label is a {type(label).__name__}, expected a class id "
                    f"or a class name under 'label'; write it so, or set dataset.storage.labels"
                )
            found.append(label)
        if all(isinstance(label, int) for label in found):
            return check_labels(np.array(found), self.classes, where=str(self))
        return class_ids([str(label) for label in found], self.classes, where=str(self))


def _plain(value: Any) -> Any:
    """A value, or the number in an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value

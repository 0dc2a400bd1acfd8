"""A storage whose records are files, a sample each, that hold arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.file_labels import FileLabels
from datasets.annotations.label_arrays import check_labels
from datasets.annotations.labels import class_ids
from datasets.file_reader import MissingFile
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.scan import is_unchanged, scan_files


class SampleFiles(IndexedStorage):
    """Files of arrays below a folder, a sample each. Their keys are paths below it.

    Nothing but their names is looked at before they are read, and none stays open.

    Args:
        name: What the storage is called.
        path: The folder.
        endings: Of the files.
        load: The fields in a file, of its path and the folder's; ValueError where it is damaged,
            `datasets.file_reader.MissingFile` where it is gone.
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
        load: Callable[[str, str], dict[str, Any]],
        labels: FileLabels,
        classes: list[str] | None,
    ) -> None:
        self.name = name
        self.path = path
        self.endings = endings
        self.classes = None if classes is None else tuple(classes)
        self._load = load
        self._labels = labels
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        """Key, label and size_bytes of every file."""
        if self._index is None:
            if not os.path.isdir(self.path):
                what = "a file" if os.path.exists(self.path) else "nothing there"
                raise ValueError(
                    f"{self}: expected a folder of files with a sample each, got {what}; set "
                    f"dataset.storage.path"
                )
            labels = [self._labels.source, self._labels.pattern]
            self._index = cached_index(
                {**self._recipe(), "rows": False, "labels": labels},
                build=self._build,
                is_current=lambda index: (
                    index.metadata["csv"] == self._labels.csv_version()
                    and is_unchanged(self.path, index.metadata["folders"], index)
                ),
            )
        return self._index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; one that is damaged or gone is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        labels = index.values("label", indices).tolist() if "label" in index.columns else None
        records: list[Record | BadRecord] = []
        rows = zip(indices.tolist(), index.raw_keys(indices), index.keys(indices), strict=True)
        for n, (i, raw_key, key) in enumerate(rows):
            try:
                found = self._load(os.path.join(self.path, os.fsdecode(raw_key)), self.path)
            except (MissingFile, ValueError) as error:
                records.append(BadRecord(i, key, " ".join(str(error).split())))
                continue
            fields = _kept(found)
            if labels is not None:
                fields["label"] = labels[n]
            records.append(Record(i, key, fields))
        return records

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index}

    def _build(self, path: Path) -> None:
        found = scan_files(self.path, endings=self.endings)
        if not found.keys:
            others = ", ".join(name.decode(errors="backslashreplace") for name in found.others)
            raise ValueError(
                f"{self}: no {' or '.join(self.endings)} file found, among "
                f"{others or 'no files at all'}; set dataset.storage.path"
            )
        columns: dict[str, NDArray[Any]] = {"size_bytes": found.size_bytes}
        names = None
        csv_version = self._labels.csv_version()
        if self._labels.source == "file":
            columns["label"], names = self._labels_inside(found.keys)
        elif self._labels.source is not None:
            texts = [key.decode("utf-8", "backslashreplace") for key in found.keys]
            given = self._labels.names(texts, where=str(self))
            columns["label"], names = class_ids(given, self.classes, where=str(self))
        write_index(
            path,
            keys=found.keys,
            columns=columns,
            class_names=names,
            metadata={"csv": csv_version, "folders": found.folders},
        )

    def _labels_inside(self, keys: list[bytes]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Class ids, or the ids of class names, that stand in the files."""
        found = []
        for key in keys:
            name = os.fsdecode(key)
            try:
                label = _plain(self._load(os.path.join(self.path, name), self.path).get("label"))
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


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in fields.items() if name != "label"}


def _plain(value: Any) -> Any:
    """A value, or the number in an array without axes."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else value

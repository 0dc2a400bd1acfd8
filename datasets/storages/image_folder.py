"""Image files in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.file_labels import FileLabels
from datasets.annotations.labels import class_ids
from datasets.file_reader import MissingFile, read_file
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.scan import IMAGE_ENDINGS, is_unchanged, scan_files
from pipeline.registry import register


@register("storage", "image_folder")
class ImageFolder(IndexedStorage):
    """Image files below a folder, found by a scan or named by a pattern.

    Records have the fields ``image`` (the file's bytes) and, with labels, ``label``. Their keys
    are paths relative to the folder. Empty and unreadable files stay records and are reported
    as bad samples when they are used.

    Args:
        path: The folder.
        labels: ``folder`` (the first folder below `path`), ``filename``, the path of a CSV with
            the columns key and label, or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        pattern: Names in place of a scan, such as ``img_{:07d}.jpg``: nothing is stored for a
            file. With the default labels, a pattern without a folder has none.
        count: The number of files that `pattern` names.
        start: The number of the first of them.
        classes: Class names by id; None: those found, sorted (numbers by their value).
        follow_symlinks: Take linked files and folders.
        hidden: Take what begins with a dot.
        endings: Endings of image files, in any case.
    """

    name = "image_folder"

    def __init__(
        self,
        path: str,
        *,
        labels: str | None = "folder",
        label_pattern: str | None = None,
        pattern: str | None = None,
        count: int | None = None,
        start: int = 0,
        classes: list[str] | None = None,
        follow_symlinks: bool = True,
        hidden: bool = False,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
    ) -> None:
        self.path = os.path.abspath(path)
        self._file_labels = FileLabels.of(labels, label_pattern, folder=self.path)
        self.labels = self._file_labels.source
        self.label_pattern = label_pattern
        self.pattern = pattern
        self.count = count
        self.start = start
        self.classes = None if classes is None else tuple(classes)
        self.follow_symlinks = follow_symlinks
        self.hidden = hidden
        self.endings = tuple(endings)
        self._index: Index | None = None
        if (pattern is None) != (count is None):
            raise ValueError(f"{self}: pattern and count belong together; got only one of them")
        if pattern is not None:
            self._check_pattern(pattern)

    @property
    def index(self) -> Index:
        """Key, label and size_bytes of every file (generated names have no sizes)."""
        if self._index is None:
            if not os.path.isdir(self.path):
                what = "a file" if os.path.exists(self.path) else "nothing there"
                raise ValueError(
                    f"{self}: expected a folder of images, got {what}; set dataset.storage.path"
                )
            self._index = cached_index(
                self._recipe(),
                build=self._build_scanned if self.pattern is None else self._build_generated,
                is_current=self._is_current,
            )
        return self._index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; one that is gone or forbidden is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index = self.index
        indices = np.asarray(indices, np.int64)
        labels = index.values("label", indices).tolist() if "label" in index.columns else None
        sizes: list[int | None] = [None] * len(indices)
        if "size_bytes" in index.columns:
            sizes = index.values("size_bytes", indices).tolist()
        top = os.fsencode(self.path) + b"/"
        records: list[Record | BadRecord] = []
        raw_keys = index.raw_keys(indices)
        for n, (i, raw_key, size) in enumerate(zip(indices.tolist(), raw_keys, sizes, strict=True)):
            key = raw_key.decode("utf-8", "backslashreplace")
            try:
                content = read_file(top + raw_key, root=self.path, size_bytes=size)
            except MissingFile as error:
                records.append(BadRecord(i, key, str(error)))
                continue
            fields: dict[str, Any] = {"image": content}
            if labels is not None:
                fields["label"] = labels[n]
            records.append(Record(i, key, fields))
        return records

    def __getstate__(self) -> dict[str, Any]:
        # With the index opened here, no worker looks through the folder again.
        return {**vars(self), "_index": self.index}

    def _check_pattern(self, pattern: str) -> None:
        assert self.count is not None
        if self.count < 0 or self.start < 0:
            raise ValueError(f"{self}: count and start must be 0 or more")
        try:
            distinct = pattern.format(0) != pattern.format(1)
        except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{self}: pattern {pattern!r} does not format a number ({error}); expected one "
                f"like img_{{:07d}}.jpg"
            ) from error
        if not distinct:
            raise ValueError(
                f"{self}: pattern {pattern!r} gives every file one name; put the number in, as "
                f"in img_{{:07d}}.jpg"
            )

    def _build_scanned(self, path: Path) -> None:
        found = scan_files(
            self.path,
            endings=self.endings,
            follow_symlinks=self.follow_symlinks,
            hidden=self.hidden,
        )
        if not found.keys:
            others = ", ".join(name.decode(errors="backslashreplace") for name in found.others)
            raise ValueError(
                f"{self}: no image found, among {others or 'no files at all'}; expected names "
                f"that end in {', '.join(self.endings)}; set dataset.storage.path, or endings"
            )
        sizes = found.size_bytes
        narrow = np.uint32 if sizes.max() < 1 << 32 else np.int64
        self._write(path, found.keys, sizes.astype(narrow), folders=found.folders)

    def _build_generated(self, path: Path) -> None:
        pattern, count = self.pattern, self.count
        assert pattern is not None and count is not None
        if self.labels is None or (self.labels == "folder" and "/" not in pattern):
            write_index(path, key_pattern=pattern, key_start=self.start, count=count, columns={})
            return
        keys = [pattern.format(self.start + i).encode() for i in range(count)]
        self._write(path, keys, None)

    def _write(
        self,
        path: Path,
        keys: list[bytes],
        size_bytes: NDArray[Any] | None,
        folders: Sequence[tuple[str, int]] = (),
    ) -> None:
        columns: dict[str, NDArray[Any]] = {}
        class_names = None
        metadata: dict[str, Any] = {"folders": folders}
        if size_bytes is not None:
            columns["size_bytes"] = size_bytes
        if self.labels is not None:
            # The file's time before it is read: written meanwhile, it is read again next time.
            metadata["csv"] = self._file_labels.csv_version()
            texts = [key.decode("utf-8", "backslashreplace") for key in keys]
            names = self._file_labels.names(texts, where=str(self))
            columns["label"], class_names = class_ids(names, self.classes, where=str(self))
        if self.pattern is None:
            write_index(
                path, keys=keys, columns=columns, class_names=class_names, metadata=metadata
            )
        else:
            write_index(
                path,
                key_pattern=self.pattern,
                key_start=self.start,
                count=self.count,
                columns=columns,
                class_names=class_names,
                metadata=metadata,
            )

    def _is_current(self, index: Index) -> bool:
        if index.metadata.get("csv") != self._file_labels.csv_version():
            return False
        if self.pattern is not None:
            return True
        return is_unchanged(self.path, index.metadata["folders"], index)

"""Add an index, lazy opening and pickling, keys and labels to a storage at one path."""

from __future__ import annotations

import json
import os
import socket
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.machine_cache import signature_of
from penstock.core.processes import leave_to_parent
from penstock.core.sample import BadRecord, Record, too_large
from penstock.datasets.files.access import is_there, is_url
from penstock.datasets.files.local_copies import copied_urls, copy_again
from penstock.datasets.records.label_files import LabelFile
from penstock.datasets.records.labels import LABEL_VERSION
from penstock.datasets.records.table import Table, cached_index, shown_key


class IndexedStorage(Storage):
    """Base class of a storage at one path; a subclass implements `scan` and `read`.

    The first access scans the path, once for all runs of this machine, and again after a change of
    `mark` or an argument: an attribute whose name does not begin with ``_``. Raise `index_version`
    when `scan` changes. `reading_arguments` do not change the index. `marks_fields` means that
    `mark` changes with every field that is not in a file of its own. A storage pickles as its
    arguments and the path of its index. For byte ranges of files subclass `file_storage.Form`.
    """

    name: str
    path: str
    reading_arguments: ClassVar[tuple[str, ...]] = ()
    index_version: ClassVar[int] = 1
    marks_fields: bool = True
    _index: Table | None = None
    _handles: tuple[int, Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "read" in vars(cls):
            cls.read = _limited(cls.read)  # type: ignore[assignment, method-assign]

    @abstractmethod
    def scan(self) -> Table:
        """Scan the data for keys, columns and class names of all records."""

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        known = "size_bytes" in self.index.columns
        return self.index.values("size_bytes", indices) if known else None

    def mark(self) -> Any:
        """Return JSON values that change with the data; called before `scan` and a cached index."""
        try:
            return file_mark(self.path)
        except OSError as error:
            raise ValueError(f"{self}: {error.strerror}; set dataset.storage.path") from error

    def is_current(self, index: Table, mark: Any) -> bool:
        """Return whether a cached index still describes the data with this `mark`."""
        return bool(index.metadata.get("mark") == mark)

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep the metadata of `scan` that `read` needs as attributes, which workers receive."""

    def open(self) -> Any:
        """Open the handles of `read`; each process calls it on first use of `opened`."""

    @property
    def index(self) -> Table:  # type: ignore[override]
        if self._index is None:
            mark = json.loads(json.dumps(self.mark()))

            def build() -> Table:
                table = self.scan()
                table.metadata["mark"] = mark
                if "size_bytes" in table.columns:
                    table.metadata["largest"] = int(table.column("size_bytes").max(initial=0))
                return table

            index = cached_index(
                self._recipe("max_record_bytes", *self.reading_arguments),
                build=build,
                is_current=partial(self.is_current, mark=mark),
            )
            self.learn(index.metadata)
            self._index = index
        return self._index

    @property
    def opened(self) -> Any:
        handles = self._handles
        if handles is None or handles[0] != os.getpid():
            leave_to_parent(handles)
            len(self.index)  # `open` may need the index
            handles = self._handles = os.getpid(), self.open()
        return handles[1]

    def records(
        self,
        indices: NDArray[np.int64],
        found: Iterable[dict[str, Any] | str],
        raw_keys: Sequence[bytes] | None = None,
    ) -> list[Record | BadRecord]:
        """Make records from fields or error messages; the index has labels, and keys for None."""
        labels: list[Any] = [None] * len(indices)
        if "label" in self.index.columns:
            labels = self.index.column("label")[indices].tolist()
        records: list[Record | BadRecord] = []
        keys = self.index.keys(indices) if raw_keys is None else list(map(shown_key, raw_keys))
        for i, key, label, fields in zip(indices.tolist(), keys, labels, found, strict=True):
            if isinstance(fields, str):
                records.append(BadRecord(i, key, fields))
            else:
                fields = fields if label is None else {**fields, "label": label}
                records.append(Record(i, key, fields))
        return records

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        # Open the index here, so that no worker scans the data again.
        index = self.index
        copies = {path: copied_urls[path] for path in self.read_paths() if path in copied_urls}
        origin = socket.gethostname(), copies
        return {**vars(self), "_index": index, "_handles": None, "_origin": origin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        machine, copies = state.pop("_origin")
        vars(self).update(state)
        is_here = machine == socket.gethostname()  # machines may share a name
        for path in self.read_paths():
            if path in copies and not (is_here and is_there(path)):
                copy_again(copies[path], path)
            elif not is_here and not is_there(path):
                raise ValueError(f"no {path}, from which {self.name} reads")

    def read_paths(self) -> list[str]:
        given: Any = vars(self).get("paths", vars(self).get("path", ()))
        return [given] if isinstance(given, str) else list(given)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        return self.reads_urls and is_url(self.path)

    def state(self) -> Any:
        return [self._recipe(), self.index.metadata] if self.marks_fields else None

    def _recipe(self, *without: str) -> dict[str, Any]:
        arguments = {n: v for n, v in vars(self).items() if n[0] != "_" and n not in without}
        versions = {"version": self.index_version, "label_version": LABEL_VERSION}
        return {"storage": self.name, **versions, **arguments}


_Read = Callable[[Any, NDArray[np.int64]], list[Record | BadRecord]]


def _limited(read: _Read) -> _Read:
    """Wrap `read` to return records over the size limit as bad."""

    @wraps(read)
    def limited(self: IndexedStorage, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        indices = np.asarray(indices, np.int64)
        if self.index.metadata.get("largest", 0) <= self.max_record_bytes:
            return read(self, indices)
        sizes = self.index.values("size_bytes", indices)
        large = np.flatnonzero(sizes > self.max_record_bytes).tolist()
        found = read(self, np.delete(indices, large))
        for row in large:
            cause = too_large(sizes[row], self.max_record_bytes)
            [key] = self.index.keys(indices[[row]])
            found.insert(row, BadRecord(int(indices[row]), key, cause))
        return found

    return limited


def content_mark(storage: Storage) -> str | None:
    """Return a cache key for values of a storage's fields; None if they can change unnoticed."""
    if (state := storage.state()) is None:
        return None
    return json.dumps([storage.fingerprint(), state], sort_keys=True, default=repr)


def files_mark(root: str, names: Iterable[str | bytes]) -> str:
    """Return a hash of the sizes and modification times of files, to detect changes."""
    found = (LabelFile.at(os.path.join(root, os.fsdecode(name))) for name in names)
    return signature_of(files=[file and (file.size_bytes, file.mtime_ns) for file in found])


def file_mark(path: str | Path) -> list[int]:
    """Return size and modification time of a file, to detect changes."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]

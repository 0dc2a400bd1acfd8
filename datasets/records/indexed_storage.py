"""Add an index, lazy opening and pickling, keys and labels to a storage at one path."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.machine_cache import is_received
from penstock.core.processes.forks import leave_to_parent
from penstock.core.sample import BadRecord, Record, too_large
from penstock.core.stage_times import CountedRecords, counted
from penstock.datasets.files.access import is_there, is_url
from penstock.datasets.files.local_copies import copy_again, url_of_copy
from penstock.datasets.records.index import cached_index
from penstock.datasets.records.labels import LABEL_VERSION
from penstock.datasets.records.table import Table

_may_scan: ContextVar[bool] = ContextVar("_may_scan", default=True)


class NoIndexYet(ValueError):
    """The machine's cache lacks an index of the data, and scans are disabled."""


@contextmanager
def without_scans() -> Iterator[None]:
    """Raise `NoIndexYet` in the block where data would have to be scanned."""
    token = _may_scan.set(False)
    try:
        yield
    finally:
        _may_scan.reset(token)


class IndexedStorage(Storage):
    """Base class of a storage at one path; a subclass implements `scan` and `read`.

    The first access scans the path, once for all runs of this machine. A changed `mark` or argument
    scans it again. Arguments are the attributes whose names do not begin with ``_``. A storage
    pickles as its arguments and the path of its index. Each process opens its own handles, also
    after a fork. Formats with records in byte ranges subclass `Form` of
    `datasets.records.file_storage` instead.

    Attributes:
        name: The registered name.
        path: Absolute path of the data.
        reading_arguments: Arguments that change only how records are read, not the index.
        index_version: Raise it when `scan` returns something else for the same data.
        reads_urls: The storage reads URLs itself: its `read` requests all ranges at once, with
            `datasets.files.access.read_each`.
        marks_fields: `mark` changes with every field that is not in a file of its own.
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
            cls.read = _within_limit(_counted(cls.read))  # type: ignore[assignment, method-assign]

    def scan(self) -> Table:
        """Scan the data for keys, columns and class names of all records."""
        raise NotImplementedError(f"{type(self).__name__}.scan")

    @abstractmethod
    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n]; see `core.contracts.Storage`."""

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the memory of each record after reading, from the column ``size_bytes``."""
        if "size_bytes" in self.index.columns:
            return self.index.values("size_bytes", indices)
        return None

    def record_bytes(self, indices: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the bytes that reading each record takes, integer [n]; None if unknown."""
        return IndexedStorage.held_bytes(self, indices)

    def mark(self) -> Any:
        """Return JSON values that change with the data; by default size and time of the file.

        Called before `scan`, and before a cached index is used.
        """
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
        """Return the index, and build it on first access."""
        if self._index is None:
            mark = json.loads(json.dumps(self.mark()))

            def build() -> Table:
                if not _may_scan.get():
                    raise NoIndexYet(f"{self}: the index is missing")
                table = self.scan()
                table.metadata["mark"] = mark
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
        """Return the result of `open` in this process."""
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
        """Make records from the fields, or error messages, read at `indices`, int64 [n].

        Labels come from the index. Keys do too if `raw_keys` is None.
        """
        labels = None
        if "label" in self.index.columns:
            labels = self.index.values("label", indices).tolist()
        if raw_keys is None:
            keys = self.index.keys(indices)
        else:
            keys = [key.decode("utf-8", "backslashreplace") for key in raw_keys]
        records: list[Record | BadRecord] = []
        rows = zip(indices.tolist(), keys, found, strict=True)
        for n, (i, key, fields) in enumerate(rows):
            if isinstance(fields, str):
                records.append(BadRecord(i, key, fields))
                continue
            if labels is not None:
                fields["label"] = labels[n]
            records.append(Record(i, key, fields))
        return records

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        # Open the index here, so that no worker scans the data again.
        index = self.index
        copies = {p: url for p in self.read_paths() if (url := url_of_copy(p)) is not None}
        return {**vars(self), "_index": index, "_handles": None, "_copies": copies}

    def __setstate__(self, state: dict[str, Any]) -> None:
        copies = state.pop("_copies", {})
        vars(self).update(state)
        for path in self.read_paths() if is_received() else ():
            if path in copies:
                copy_again(copies[path], path)
            elif not is_there(path):
                raise ValueError(f"no {path}, from which {self.name} reads")

    def read_paths(self) -> list[str]:
        """Return the paths that `read` reads, by default the configured ones."""
        given: Any = vars(self).get("paths", vars(self).get("path"))
        if isinstance(given, str | os.PathLike):
            return [os.fspath(given)]
        several = given.values() if isinstance(given, Mapping) else given
        return [os.fspath(path) for path in several or ()]

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether the records are read from a URL."""
        return self.reads_urls and is_url(self.path)

    def state(self) -> Any:
        """Return the arguments, and the notes of the index about the files."""
        return [self._recipe(), self.index.metadata] if self.marks_fields else None

    def _recipe(self, *without: str) -> dict[str, Any]:
        """Return the values that identify an index: the arguments except `without`."""
        arguments = {n: v for n, v in vars(self).items() if n[0] != "_" and n not in without}
        versions = {"version": self.index_version, "label_version": LABEL_VERSION}
        return {"storage": self.name, **versions, **arguments}


_Read = Callable[[Any, NDArray[np.int64]], list[Record | BadRecord]]


def _counted(read: _Read) -> _Read:
    """Wrap `read` to report its requests to servers."""

    @wraps(read)
    def telling(self: IndexedStorage, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        with counted() as asked:
            found = read(self, indices)
        if not asked.requests:
            return found
        return CountedRecords(found, requests=asked.requests, fetched_bytes=asked.size_bytes)

    return telling


def _within_limit(read: _Read) -> _Read:
    """Wrap `read` to skip records over the size limit and return them as bad."""

    @wraps(read)
    def limited(self: IndexedStorage, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        indices = np.asarray(indices, np.int64)
        sizes = self.record_bytes(indices)
        if sizes is None or (large := sizes > self.max_record_bytes).sum() == 0:
            return read(self, indices)
        taken = read(self, indices[~large])
        found = iter(taken)
        rows = zip(indices.tolist(), self.index.keys(indices), sizes.tolist(), strict=True)
        records = [
            BadRecord(i, key, too_large(size, self.max_record_bytes)) if too else next(found)
            for (i, key, size), too in zip(rows, large.tolist(), strict=True)
        ]
        return CountedRecords.of(records, [taken])

    return limited


def content_mark(storage: Storage) -> str | None:
    """Return a cache key for values derived from the fields of a storage's records.

    None means that fields can change unnoticed: derive such values anew each time.
    """
    if (state := storage.state()) is None:
        return None
    return json.dumps([storage.fingerprint(), state], sort_keys=True, default=repr)


def file_mark(path: str | Path) -> list[int]:
    """Return size and modification time of a file, to detect changes."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]

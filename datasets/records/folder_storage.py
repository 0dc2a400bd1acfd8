"""Read the files below a folder, one record each."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.machine_cache import signature_of
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import is_url, read_each, read_file
from penstock.datasets.files.clients import Found
from penstock.datasets.files.data_files import Scan, field_of, scan_files, scan_listing
from penstock.datasets.files.listings import list_files
from penstock.datasets.records.index import is_unchanged
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import FileLabels
from penstock.datasets.records.table import Table


class FolderStorage(IndexedStorage):
    """The files below a folder or URL; keys are relative paths.

    The index knows only names and sizes. No file stays open. `holds` names the files in messages.
    Names that begin with a dot are `hidden`.
    """

    holds: str = "files"
    endings: tuple[str, ...]
    labels: FileLabels
    classes: tuple[str, ...] | None
    follow_symlinks: bool = True
    hidden: bool = False
    _listed: Sequence[Found] | None = None

    def read_fields(self, path: str) -> dict[str, Any]:
        """Read the bytes of a file, named by `field_of`; RecordError if it is not readable."""
        content = read_file(path, root=self.path, max_bytes=self.max_record_bytes)
        return {field_of(self.endings): content}

    @abstractmethod
    def nothing(self, found: Scan) -> str:
        """Return the message for a folder without such files."""

    def remedy(self) -> str:
        """Return the remedy for a `path` that is not a folder."""
        return "set dataset.storage.path"

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; return a `BadRecord` for a damaged or missing one."""

        def read(key: bytes) -> dict[str, Any] | str:
            try:
                return self.read_fields(f"{self.path}/{os.fsdecode(key)}")
            except RecordError as error:
                return str(error)

        keys = self.index.raw_keys(indices)
        return self.records(indices, read_each(read, keys, place=self.path), keys)

    def mark(self) -> Any:
        """Return the state of the label CSV and of a URL's listing, but not of local folders."""
        if is_url(self.path):
            self._listed = list_files(self.path)
            return [signature_of(files=self._listed), self.labels.csv_version()]
        if not os.path.isdir(self.path):
            what = "a file" if os.path.exists(self.path) else "nothing there"
            said = f"expected a folder of {self.holds}, got {what}; {self.remedy()}"
            raise ValueError(f"{self}: {said}")
        return self.labels.csv_version()

    def is_current(self, index: Table, mark: Any) -> bool:
        """Return whether labels and folders are unchanged."""
        current = super().is_current(index, mark)
        if not current or is_url(self.path):
            return current
        return is_unchanged(self.path, index.metadata["folders"], index)

    def learn(self, metadata: dict[str, Any]) -> None:
        """Drop the listing, which may be long."""
        self._listed = None

    def scan(self) -> Table:
        """Find the files and their labels."""
        endings, hidden = self.endings, self.hidden
        if self._listed is not None:
            found = scan_listing(self._listed, endings=endings, hidden=hidden)
        else:
            links = self.follow_symlinks
            found = scan_files(self.path, endings=endings, follow_symlinks=links, hidden=hidden)
        if not found.keys:
            raise ValueError(f"{self}: {self.nothing(found)}")
        sizes = found.size_bytes
        narrow = np.uint32 if sizes.max() < 1 << 32 else np.int64
        columns = {"size_bytes": sizes.astype(narrow)}
        return self.labelled(Table(found.keys, columns, metadata={"folders": found.folders}))

    def labelled(self, table: Table) -> Table:
        """Add the labels."""
        if self.labels.source is None:
            return table
        place = f"dataset.storage.path={self.path}/"
        return self.labels.add_to(table, self.classes, where=str(self), place=place)

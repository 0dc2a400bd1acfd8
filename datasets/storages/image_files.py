"""Read image files that are listed one by one."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import MissingFile, absolute_path, is_url, read_file
from penstock.datasets.files.clients import read_each, side_by_side
from penstock.datasets.files.listings import find_file
from penstock.datasets.records.memory_index import MemoryIndex


@register("storage", "image_files")
class ImageFiles:
    """Image files by their paths, without labels, in the order in which they are listed.

    Records have the field ``image`` (the file's bytes); their keys are the paths as given.

    Args:
        paths: The files, or their URLs; one that stands twice is taken once.
    """

    def __init__(self, paths: list[str]) -> None:
        paths = list(dict.fromkeys(paths))
        self.paths = [absolute_path(os.path.expanduser(path)) for path in paths]
        # A file that is not there is a bad record, and says so where it is read.
        sizes = {path: os.path.getsize(path) for path in self.paths if os.path.exists(path)}
        self._behind = [path for path in self.paths if is_url(path)]
        for url, found in zip(self._behind, side_by_side(find_file, self._behind), strict=True):
            sizes[url] = 0 if found is None else found.size_bytes
        self.index = MemoryIndex(paths, {"size_bytes": [sizes.get(p, 0) for p in self.paths]})

    def __len__(self) -> int:
        return len(self.paths)

    def __str__(self) -> str:
        return f"image_files of {len(self)} files"

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; one that is gone or forbidden is a bad record.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: The disk has trouble that did not pass.
        """
        rows = np.asarray(indices, np.int64).tolist()
        return list(read_each(self._read, rows, place=self._behind[0] if self._behind else ""))

    def _read(self, row: int) -> Record | BadRecord:
        if not 0 <= row < len(self):
            raise IndexError(f"{self}: index {row} is outside 0 .. {len(self) - 1}")
        path, [key] = self.paths[row], self.index.keys(np.array([row]))
        try:
            return Record(row, key, {"image": read_file(path, root=os.path.dirname(path))})
        except MissingFile as error:
            return BadRecord(row, key, str(error))

    def fingerprint(self) -> str:
        """Hash of the paths as given, and of the files' sizes."""
        return self.index.fingerprint()

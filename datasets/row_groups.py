"""Where the rows of a data set lie: which file, which group of rows in it, which row of the group.

A group is what a file's format reads as one: a row group, a record batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rows and those of its rows that are wanted.

    Attributes:
        number: The group among those of all files.
        file: The file, by number.
        part: The group in its file.
        count: How many rows it has.
        rows: Wanted rows, int64 [n], ascending.
        places: Where in the request each of them stands, int64 [n].
    """

    number: int
    file: int
    part: int
    count: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]


class RowGroups:
    """The groups of all files, one behind the other.

    Args:
        counts: Rows of every group, file by file.
    """

    def __init__(self, counts: Sequence[Sequence[int]]) -> None:
        flat = [count for file in counts for count in file]
        self._ends = np.cumsum(np.array(flat, np.int64))
        self._file_ends = np.cumsum(np.array([len(file) for file in counts], np.int64))

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def wanted(self, indices: NDArray[np.int64]) -> Iterator[Group]:
        """The groups that hold the rows `indices`, int64 [n], each once, in file order."""
        order = np.argsort(indices, kind="stable")
        rows = indices[order]
        groups = np.searchsorted(self._ends, rows, side="right")
        cuts = np.flatnonzero(np.diff(groups)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            number = int(groups[part[0]])
            start = int(self._ends[number - 1]) if number else 0
            file = int(np.searchsorted(self._file_ends, number, side="right"))
            yield Group(
                number=number,
                file=file,
                part=number - (int(self._file_ends[file - 1]) if file else 0),
                count=int(self._ends[number]) - start,
                rows=rows[part] - start,
                places=order[part],
            )

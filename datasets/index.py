"""The index: metadata of every record, in an Arrow file that is memory-mapped, never loaded.

The place of every column is noted when the file is opened, from there on NumPy maps it, and a
worker receives only these places. Neither writing nor reading an index needs pyarrow.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.index_file import CHUNK_ROWS, Layout, hash_array, read_layout
from datasets.index_file import write_index as write_index
from datasets.index_file import write_whole as write_whole
from datasets.keys import Keys


class Index:
    """Metadata of every record; satisfies `datasets.protocols.Index`.

    It pickles as the place of its file and a selection of rows, maps the file on first use, and
    shares the mapped pages with every other process on the machine.

    Args:
        layout: What `Index.open` found in the file.
        selection: Rows of the file, integer [n]; None for all. One that is mapped from a file
            (`np.memmap`) pickles as that file's path.
        metadata: The metadata that was written with the index; empty in other processes.
    """

    def __init__(
        self,
        layout: Layout,
        selection: NDArray[Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._layout = layout
        self._selection = selection
        self.metadata = metadata or {}
        self._memory: mmap.mmap | None = None
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Index:
        """Open the index in the file `path`.

        Args:
            path: A file that `write_index` wrote.
            verify: Read all of it and compare it with its checksums.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, or no index.
        """
        try:
            layout, metadata = read_layout(os.fspath(path))
            index = cls(layout, metadata=metadata)
            if verify:
                index._check()
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)}: damaged or no index file ({error})") from error
        return index

    @property
    def path(self) -> str:
        """The file of this index."""
        return self._layout.path

    def __len__(self) -> int:
        return self._layout.count if self._selection is None else len(self._selection)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key."""
        return tuple(self._layout.columns)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None where there are no labels."""
        return self._layout.class_names

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:
        """Names of the classes by annotated field, such as ``box_labels``."""
        return {k: tuple(v) for k, v in self.metadata.get("field_classes", {}).items()}

    def column(self, name: str) -> NDArray[Any]:
        """One column, [len(self)], read-only; without a selection it is the mapped file itself.

        Raises:
            KeyError: There is no such column; the message names those there are.
        """
        place = self._layout.columns.get(name)
        if place is None:
            known = ", ".join(self.columns) or "none"
            raise KeyError(f"index: no column {name!r}; columns: {known}")
        values = place.view(self._map())
        return values if self._selection is None else values[self._selection]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Values of one column at the given indices, [n], reading only these rows."""
        return self._layout.columns[name].view(self._map())[self.rows(indices)]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows in the file of the given indices, int64 [n].

        Raises:
            IndexError: An index is outside 0 .. len - 1.
        """
        indices = np.asarray(indices, np.int64)
        if indices.size and not (0 <= indices.min() and indices.max() < len(self)):
            wrong = next(int(i) for i in indices if not 0 <= i < len(self))
            raise IndexError(f"index {wrong} is outside 0 .. {len(self) - 1}")
        return indices if self._selection is None else self._selection[indices].astype(np.int64)

    def raw_keys(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Keys of the given indices as the bytes they were written with."""
        layout, rows = self._layout, self.rows(indices)
        if layout.key_pattern is not None:
            pattern, start = layout.key_pattern, layout.key_start
            return [pattern.format(start + row).encode() for row in rows.tolist()]
        assert layout.key_offsets is not None and layout.key_text is not None
        memory = self._map()
        offsets, text = layout.key_offsets.view(memory), layout.key_text.offset
        starts, stops = offsets[rows].tolist(), offsets[rows + 1].tolist()
        return [memory[text + a : text + b] for a, b in zip(starts, stops, strict=True)]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        r"""Keys of the given indices. Bytes that are not UTF-8 show as ``\xff``."""
        return list(self.key_column(indices))

    def key_column(self, indices: NDArray[np.int64]) -> list[str] | Keys:
        """The same; those of numbered records are made when they are looked at."""
        pattern = self._layout.key_pattern
        if pattern is not None:
            return Keys(self.rows(indices) + self._layout.key_start, pattern)
        return [key.decode("utf-8", "backslashreplace") for key in self.raw_keys(indices)]

    def iter_raw_keys(self) -> Iterator[bytes]:
        """All keys in order, a bounded number of them in memory at a time."""
        for start in range(0, len(self), CHUNK_ROWS):
            yield from self.raw_keys(np.arange(start, min(start + CHUNK_ROWS, len(self))))

    def take(self, indices: NDArray[Any]) -> Index:
        """The index of a selection of rows, integer [n]; nothing is copied but the selection."""
        if self._selection is not None:
            indices = self.rows(indices)
        elif len(indices) and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"take: indices must lie in 0 .. {len(self) - 1}")
        return Index(self._layout, indices, self.metadata)

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels; not of paths or times."""
        if self._selection is None:
            return self._layout.fingerprint
        if self._fingerprint is None:
            digest = hashlib.blake2b(self._layout.fingerprint.encode(), digest_size=16)
            hash_array(digest, self._selection)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _check(self) -> None:
        """Compare every array in the file with its checksum; some GB a second."""
        memory = self._map()
        for name, place in self._layout.places().items():
            found = zlib.crc32(place.view(memory).data) if place.count else 0
            if found != self._layout.checksums[name]:
                raise ValueError(f"{name} is not what was written")

    def _map(self) -> mmap.mmap:
        if self._memory is None:
            with open(self._layout.path, "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if len(memory) != self._layout.size_bytes:
                raise RuntimeError(
                    f"index {self._layout.path}: it was written anew while it was in use; "
                    f"start the program again"
                )
            self._memory = memory
        return self._memory

    def __getstate__(self) -> tuple[Any, ...]:
        selection: Any = self._selection
        if isinstance(selection, np.memmap) and selection.filename is not None:
            selection = (os.fspath(selection.filename), selection.shape)
        return self._layout, selection, self._fingerprint

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        layout, selection, fingerprint = state
        if isinstance(selection, tuple):
            selection = np.load(selection[0], mmap_mode="r")
        self.__init__(layout, selection)  # type: ignore[misc]
        self._fingerprint = fingerprint

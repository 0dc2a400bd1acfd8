"""The table of records: keys, columns and metadata, in memory or mapped from a file.

The file is an uncompressed ``.npz``: an array for each column, and ``index.json``. Opening it
records where each array begins. Workers receive these positions and map the file themselves.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy, read_npy_header
from penstock.core.contracts import Index
from penstock.core.files import whole_file
from penstock.core.machine_cache import received, sent
from penstock.core.sample import Keys

NO_LABEL = np.iinfo(np.int64).min
"""Marks a record without a label among labelled records."""
_HEADER = "index.json"
_CHUNK_ROWS = 1 << 18
_ALIGNMENT = 64
_PADDING = struct.Struct("<HH")  # zip extra field: id and length
_PADDING_ID = 0x7070
_ZIP64_BYTES, _LOCAL_BYTES, _END_BYTES = 20, 30, 22


def numbered(count: int, pattern: str = "{}", start: int = 0) -> Keys:
    """Return the keys of `count` records, each `pattern` with a number; no key is stored."""
    return Keys(range(start, start + count), pattern)


def constant(value: Any, count: int, dtype: Any = np.int64) -> NDArray[Any]:
    """Return a column [count] of one value, which takes no memory and no space in a file."""
    return np.broadcast_to(np.asarray(value, dtype), count)


class Table(Index):
    """Keys, columns and metadata of records, or of a selection of them.

    A table of a file pickles as its path. Each process maps the file on first use and shares its
    pages with the others. A `np.memmap` selection pickles as its path, too.

    Args:
        keys: The key of every record, as text or bytes, or `numbered` keys.
        columns: Numbers by name, [n] each. The fingerprint covers only ``label`` and
            ``size_bytes``.
        class_names: Class names by ``label``; None if labels are numbers.
        metadata: Small JSON values.
        content: Text for the fingerprint that distinguishes data with equal keys and sizes.

    Attributes:
        path: The file; None for a table in memory.
    """

    path: str | None = None
    _size_bytes = 0
    _keys: Keys | list[bytes] | None = None  # None: in the file
    _places: dict[str, tuple[str, int, int]]  # dtype, length and offset of each array in the file
    _memory: mmap.mmap | None = None
    _rows: NDArray[Any] | None = None
    _whole: str | None = None  # fingerprint without the selection
    _selected: str | None = None

    def __init__(
        self,
        keys: Sequence[str | bytes] | Keys,
        columns: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        content: str = "",
    ) -> None:
        self._keys = keys if isinstance(keys, Keys) else list(map(_raw, keys))
        self._count = len(keys)
        self._arrays = {name: np.asarray(values) for name, values in (columns or {}).items()}
        self.columns = tuple(self._arrays)
        self.class_names = None if class_names is None else tuple(class_names)
        self._metadata: dict[str, Any] | None = dict(metadata or {})
        self._content = content
        for name, values in self._arrays.items():
            if values.shape != (self._count,):
                raise ValueError(
                    f"index: column {name!r} has the shape {values.shape}, expected one value "
                    f"for each of the {self._count} keys"
                )

    @classmethod
    def of(cls, index: Index) -> Table:
        """Return `index` as a table; copy an index of another class."""
        if isinstance(index, cls):
            return index
        columns = {name: index.column(name) for name in index.columns}
        keys = index.raw_keys(np.arange(len(index)))
        return cls(keys, columns, index.class_names, {"field_classes": dict(index.field_classes)})

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Table:
        """Open a file, and compare it with its checksums to `verify` it.

        ValueError means that the file is damaged or not a table.
        """
        table = cls.__new__(cls)
        try:
            table._read(os.path.abspath(path), verify)
        except FileNotFoundError:
            raise
        except Exception as error:  # damage raises many types
            raise ValueError(f"{os.fspath(path)}: damaged or no index file ({error})") from error
        return table

    def _read(self, path: str, verify: bool) -> None:
        with open(path, "rb") as file:
            with zipfile.ZipFile(file) as archive:
                if any(m.compress_type != zipfile.ZIP_STORED for m in archive.infolist()):
                    raise ValueError("it is compressed, and was not when it was written")
                header = json.loads(archive.read(_HEADER))
                if verify and (damaged := archive.testzip()):
                    raise ValueError(f"{damaged} is not what was written")
                self._places = {
                    member.filename.removesuffix(".npy"): _place(file, member)
                    for member in archive.infolist()
                    if member.filename != _HEADER
                }
            file.seek(-_END_BYTES, os.SEEK_END)
            if not file.read(_END_BYTES).startswith(b"PK\x05\x06"):
                raise ValueError("something follows its end")
            self._size_bytes = file.tell()
        names, pattern = header["class_names"], header["key_pattern"]
        self.path, self._count, self.columns = path, header["count"], tuple(header["columns"])
        self.class_names = None if names is None else tuple(names)
        needed = {str(number) for number in range(len(self.columns))}
        if pattern is not None:
            self._keys = numbered(self._count, pattern, header["key_start"])
        else:
            needed |= {"key_offsets", "key_text"}
        if missing := needed - self._places.keys():
            raise ValueError(f"it lacks {sorted(missing)}")
        self._metadata, self._whole = header["metadata"], header["fingerprint"]

    def write(self, path: str | Path) -> None:
        """Write the table to a file, which appears under its name only when complete."""
        arrays = {} if isinstance(self._keys, Keys) else _joined(self.raw_keys())
        for number, values in enumerate(self.arrays.values()):
            dtype = np.dtype(np.uint8) if values.dtype == bool else values.dtype.newbyteorder("<")
            one = values[:1] if values.strides == (0,) else values
            arrays[f"{number}"] = np.ascontiguousarray(one, dtype)
        header = {
            "count": len(self),
            "columns": list(self.columns),
            "key_pattern": self._numbers[0],
            "key_start": self._numbers[1],
            "class_names": self.class_names,
            "fingerprint": self.fingerprint(),
            "metadata": self.metadata,
        }
        with whole_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header))
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")
                # Pad, so that the numbers begin at a multiple of their size.
                start = archive.fp.tell() + _LOCAL_BYTES + len(member.filename)  # type: ignore[union-attr]
                gap = -(start + _PADDING.size + _ZIP64_BYTES) % _ALIGNMENT
                member.extra = _PADDING.pack(_PADDING_ID, gap) + bytes(gap)
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)

    def replaced(self, **changes: Any) -> Table:
        """Return a table in memory with other arguments."""
        keys = self._keys if self._rows is None and self._keys is not None else self.raw_keys()
        given = {"keys": keys, "columns": self.arrays, "class_names": self.class_names}
        return Table(**{**given, "metadata": self.metadata, **changes})

    @property
    def _numbers(self) -> tuple[str | None, int]:
        """Return pattern and first number of numbered keys."""
        if isinstance(self._keys, Keys):
            return self._keys.pattern, self._keys.values.start
        return None, 0

    def _made(self, rows: NDArray[np.int64]) -> Keys:
        pattern, start = self._numbers
        return Keys(start + rows, pattern)

    def __len__(self) -> int:
        return self._count if self._rows is None else len(self._rows)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata; processes that received the table read it on first access."""
        if self._metadata is None:
            self._metadata = Table.open(str(self.path)).metadata
        return self._metadata

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        """Return class names by annotated field, such as ``box_labels``."""
        return {k: tuple(v) for k, v in self.metadata.get("field_classes", {}).items()}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all columns by name, [len(self)] each."""
        return {name: self.column(name) for name in self.columns}

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, [len(self)], read-only in a file; a KeyError lists the columns."""
        if name not in self.columns:
            return super().column(name)
        values = self._all(name)
        return values if self._rows is None else values[self._rows]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return values of a column at `indices`, [n]; read only these rows."""
        return self._all(name)[self.rows(indices)]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `indices` before the selection, int64 [n]."""
        indices = np.asarray(indices, np.int64)
        # As an unsigned number, a negative index is too large.
        if indices.size and indices.view(np.uint64).max() >= len(self):
            wrong = next(int(i) for i in indices if not 0 <= i < len(self))
            raise IndexError(f"index {wrong} is outside 0 .. {len(self) - 1}")
        return indices if self._rows is None else self._rows[indices].astype(np.int64)

    def raw_keys(self, indices: NDArray[np.int64] | None = None) -> list[bytes]:
        """Return the keys of `indices` as the stored bytes; None: all keys."""
        rows = self.rows(np.arange(len(self)) if indices is None else indices)
        if isinstance(self._keys, Keys):
            return [key.encode() for key in self._made(rows)]
        if self._keys is not None:
            return [self._keys[row] for row in rows.tolist()]
        ends, (_, _, start) = self._view("key_offsets"), self._places["key_text"]
        assert self._memory is not None
        return [
            self._memory[start + a : start + b]
            for a, b in zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True)
        ]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        r"""Return the keys of `indices`; bytes that are not UTF-8 become ``\xff``."""
        return list(self.key_column(indices))

    def key_column(self, indices: NDArray[np.int64]) -> list[str] | Keys:
        """Return the keys of `indices`; format numbered keys lazily."""
        if isinstance(self._keys, Keys):
            return self._made(self.rows(indices))
        return [key.decode("utf-8", "backslashreplace") for key in self.raw_keys(indices)]

    def take(self, indices: NDArray[Any]) -> Table:
        """Return the table of selected rows, integer [n]; copy only the selection."""
        if len(indices) and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"take: indices must be within 0 .. {len(self) - 1}")
        taken = Table.__new__(Table)
        vars(taken).update(vars(self), _selected=None)
        taken._rows = indices if self._rows is None else self.rows(indices)
        return taken

    def fingerprint(self) -> str:
        """Hash keys, sizes and labels, but not paths or times."""
        if self._whole is None:
            self._whole = self._hashed()
        if self._rows is None:
            return self._whole
        if self._selected is None:
            digest = hashlib.blake2b(self._whole.encode(), digest_size=16)
            _hash_array(digest, self._rows)
            self._selected = digest.hexdigest()
        return self._selected

    def _hashed(self) -> str:
        """Hash keys, sizes and labels, independently of integer types."""
        digest = hashlib.blake2b(self._content.encode(), digest_size=16)
        digest.update(json.dumps([self._count, self._numbers, self.class_names]).encode())
        hashed: dict[str, Any] = {n: self._arrays.get(n) for n in ("label", "size_bytes")}
        if not isinstance(self._keys, Keys):
            strings = _joined(self.raw_keys())
            digest.update(strings["key_text"].data)
            hashed = {"key_offsets": strings["key_offsets"], **hashed}
        for name, values in hashed.items():
            if values is not None:
                digest.update(name.encode())
                _hash_array(digest, values)
        return digest.hexdigest()

    def _all(self, name: str) -> NDArray[Any]:
        """Return a column of all rows before the selection."""
        if self.path is None:
            return self._arrays[name]
        values = self._view(f"{self.columns.index(name)}")
        return values if len(values) == self._count else np.broadcast_to(values, self._count)

    def _view(self, name: str) -> NDArray[Any]:
        """Map an array of the file."""
        if self._memory is None:
            with open(str(self.path), "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if len(memory) != self._size_bytes:
                raise RuntimeError(
                    f"index {self.path}: it was written anew while it was in use; start the "
                    f"program again"
                )
            self._memory = memory
        return np.frombuffer(self._memory, *self._places[name])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.path is not None:
            sent(self.path)
            state |= {"_memory": None, "_metadata": None}
        if isinstance(self._rows, np.memmap) and self._rows.filename is not None:
            state["_rows"] = sent(os.fspath(self._rows.filename))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.path is not None:
            self.path = received(self.path)
        if isinstance(self._rows, str):
            self._rows = map_npy(received(self._rows))


def _place(file: Any, member: zipfile.ZipInfo) -> tuple[str, int, int]:
    # The two lengths at the end of the local header (APPNOTE, 4.3.7).
    file.seek(member.header_offset + _LOCAL_BYTES - 4)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    (count,), _, dtype = read_npy_header(file)
    return dtype.str, count, file.tell() if count else 0


def _raw(key: str | bytes) -> bytes:
    return key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key


def _joined(keys: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """Join keys, with the offset of each key and the end of the last."""
    joined = b"".join(keys)
    offsets = np.zeros(len(keys) + 1, np.int64 if len(joined) >= 1 << 31 else np.int32)
    offsets[1:] = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
    return {"key_offsets": offsets, "key_text": np.frombuffer(joined, np.uint8)}


def _hash_array(digest: Any, values: NDArray[Any]) -> None:
    """Add numbers to a digest, independently of the integer type."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    for start in range(0, len(values), _CHUNK_ROWS):
        digest.update(np.ascontiguousarray(values[start : start + _CHUNK_ROWS], dtype))


def by_part(
    ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the parts that hold `rows`, int64 [n]: their number, places in `rows`, and own rows.

    `ends` are the rows up to the end of each part.
    """
    if not rows.size:
        return
    parts = np.searchsorted(ends, rows, side="right")
    groups = [np.arange(len(rows))]  # mostly one part
    if parts.min() != parts.max():
        order = np.argsort(rows, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(parts[order])) + 1)
    for places in groups:
        part = int(parts[places[0]])
        yield part, places, rows[places] - (ends[part - 1] if part else 0)


def tables_of(index: Table) -> dict[tuple[Any, ...], Table]:
    """Split an index into its tables, by name, size and mark of the file.

    Omit files with unlabelled records that the index lacks, and files with other classes.
    """
    files, metas = index.metadata["mark"][0], index.metadata["files"]
    if "file" in index.columns:
        rows = np.argsort(index.column("file"), kind="stable")
        ends = np.cumsum(np.bincount(index.column("file"), minlength=len(files)))
    else:  # the files are in order
        rows, ends = np.arange(len(index)), np.cumsum([meta["count"] for meta in metas])
    names = [name for name in index.columns if name not in ("file", "label", "number")]
    found = {}
    for file, meta, part in zip(files, metas, np.split(rows, ends[:-1]), strict=True):
        declared = meta["classes"] and tuple(meta["classes"])
        if len(part) != meta["count"] or declared not in (None, index.class_names):
            continue
        columns = {name: index.values(name, part) for name in names}
        if label := meta["label"]:
            columns["label"] = index.values(label, part).astype(np.int64)
        classes = index.class_names if label == "label" else None
        found[tuple(file)] = Table(index.raw_keys(part), columns, classes, meta)
    return found

"""Store metadata of every record in a memory-mapped file, cached on this machine.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from penstock.core import contracts
from penstock.core.arrays import map_npy, read_npy_header
from penstock.core.files import whole_file, write_whole
from penstock.core.machine_cache import computed_once, received, sent, signature_of
from penstock.core.sample import Keys

_SPOT_CHECKS = 64
_HEADER = "index.json"
_CHUNK_ROWS = 1 << 18
_ALIGNMENT = 64
_PADDING = struct.Struct("<HH")  # zip extra field: id and length
_PADDING_ID = 0x7070
_ZIP64_BYTES, _LOCAL_BYTES, _END_BYTES = 20, 30, 22


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of an array in the file."""

    offset: int
    dtype: str
    count: int

    def view(self, memory: mmap.mmap) -> NDArray[Any]:
        """Return the array [count], read-only, without a copy."""
        return np.frombuffer(memory, self.dtype, self.count, self.offset)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The data that another process needs to map the index."""

    path: str
    size_bytes: int
    count: int
    columns: dict[str, _Place]
    strings: dict[str, tuple[_Place, _Place]]
    key_pattern: str | None
    key_start: int
    class_names: tuple[str, ...] | None
    fingerprint: str


class IndexContent(TypedDict, total=False):
    """The arguments of `write_index`, as a scan returns them."""

    keys: Sequence[str | bytes] | None
    key_pattern: str | None
    key_start: int
    count: int | None
    columns: Required[Mapping[str, NDArray[Any]]]
    class_names: Sequence[str] | None
    texts: Sequence[str]
    metadata: Mapping[str, Any]
    content: str


def write_index(
    path: str | Path,
    *,
    keys: Sequence[str | bytes] | None = None,
    key_pattern: str | None = None,
    key_start: int = 0,
    count: int | None = None,
    columns: Mapping[str, NDArray[Any]],
    class_names: Sequence[str] | None = None,
    texts: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    content: str = "",
) -> None:
    """Write an index file; it appears under its name only when complete.

    Args:
        path: The file to write.
        keys: The key of every record; text is written as UTF-8.
        key_pattern: Format that replaces `keys`, such as ``img_{:07d}.jpg``; no key is stored.
        key_start: The number of the first generated key.
        count: The number of generated keys.
        columns: Numbers by column name, each [n]. The fingerprint covers only `label` and
            `size_bytes`.
        class_names: Class names by label.
        texts: Distinct texts that columns refer to by number.
        metadata: JSON values.
        content: Text for the fingerprint that distinguishes data with equal keys and sizes.
    """
    assert (keys is None) == (key_pattern is not None) == (count is not None)
    arrays: dict[str, NDArray[Any]] = {}
    if keys is not None:
        count = len(keys)
        arrays |= _string_arrays("key", keys)
    if texts:
        arrays |= _string_arrays("text", texts)
    assert count is not None
    for number, (name, values) in enumerate(columns.items()):
        assert values.shape == (count,), (name, values.shape, count)
        dtype = np.dtype(np.uint8) if values.dtype == bool else values.dtype.newbyteorder("<")
        arrays[f"{number}"] = np.ascontiguousarray(values, dtype)
    names = None if class_names is None else tuple(class_names)
    identity = [count, [key_pattern, key_start], names]
    header = {
        "count": count,
        "columns": list(columns),
        "key_pattern": key_pattern,
        "key_start": key_start,
        "class_names": names,
        "fingerprint": _fingerprint(arrays, columns, identity, content),
        "metadata": dict(metadata or {}),
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


def _string_arrays(name: str, strings: Sequence[str | bytes]) -> dict[str, NDArray[Any]]:
    """Join strings, with the offset of each string and the end of the last."""
    raw = [text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
           for text in strings]  # fmt: skip
    joined = b"".join(raw)
    offsets = np.zeros(len(raw) + 1, np.int64 if len(joined) >= 1 << 31 else np.int32)
    offsets[1:] = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
    return {f"{name}_offsets": offsets, f"{name}_text": np.frombuffer(joined, np.uint8)}


def _fingerprint(
    arrays: Mapping[str, NDArray[Any]],
    columns: Mapping[str, NDArray[Any]],
    about: list[Any],
    content: str,
) -> str:
    """Hash keys, sizes and labels, independently of integer types."""
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    digest.update(json.dumps(about).encode())
    if "key_text" in arrays:
        digest.update(arrays["key_text"].data)
    for name, values in (
        ("key_offsets", arrays.get("key_offsets")),
        ("label", columns.get("label")),
        ("size_bytes", columns.get("size_bytes")),
    ):
        if values is not None:
            digest.update(name.encode())
            _hash_array(digest, values)
    return digest.hexdigest()


def _hash_array(digest: Any, values: NDArray[Any]) -> None:
    """Add numbers to a digest, independently of the integer type."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    for start in range(0, len(values), _CHUNK_ROWS):
        digest.update(np.ascontiguousarray(values[start : start + _CHUNK_ROWS], dtype))


def _read_layout(path: str, *, verify: bool) -> tuple[_Layout, dict[str, Any]]:
    """Read the positions of all arrays and the metadata."""
    places: dict[str, _Place] = {}
    with open(path, "rb") as file:
        with zipfile.ZipFile(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed, and was not when it was written")
            header = json.loads(archive.read(_HEADER))
            if verify and (damaged := archive.testzip()):
                raise ValueError(f"{damaged} is not what was written")
            for member in archive.infolist():
                if member.filename != _HEADER:
                    places[member.filename.removesuffix(".npy")] = _place(file, member)
        file.seek(-_END_BYTES, os.SEEK_END)
        if not file.read(_END_BYTES).startswith(b"PK\x05\x06"):
            raise ValueError("something follows its end")
        size = file.tell()
    columns = {name: places[f"{number}"] for number, name in enumerate(header["columns"])}
    return _layout(path, size, header, columns, places), header["metadata"]


def _place(file: Any, member: zipfile.ZipInfo) -> _Place:
    # The two lengths at the end of the local header (APPNOTE, 4.3.7).
    file.seek(member.header_offset + _LOCAL_BYTES - 4)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    (count,), _, dtype = read_npy_header(file)
    return _Place(file.tell() if count else 0, dtype.str, count)


def _layout(
    path: str,
    size_bytes: int,
    header: dict[str, Any],
    columns: dict[str, _Place],
    places: dict[str, _Place],
) -> _Layout:
    names = header["class_names"]
    return _Layout(
        path=os.path.abspath(path),
        size_bytes=size_bytes,
        count=header["count"],
        columns=columns,
        strings={
            name: (places[f"{name}_offsets"], places[f"{name}_text"])
            for name in ("key", "text")
            if f"{name}_text" in places
        },
        key_pattern=header["key_pattern"],
        key_start=header["key_start"],
        class_names=None if names is None else tuple(names),
        fingerprint=header["fingerprint"],
    )


class Index(contracts.Index):
    """Metadata of every record, in a file, or of a selection of its rows.

    An index pickles as its file path and row selection. It maps the file on first use and shares
    the mapped pages with other processes on the machine. A `np.memmap` selection pickles as its
    path.
    """

    def __init__(
        self,
        layout: _Layout,
        selection: NDArray[Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._layout = layout
        self.columns = tuple(layout.columns)
        self.class_names = layout.class_names
        self._selection = selection
        self._metadata = metadata
        self._memory: mmap.mmap | None = None
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Index:
        """Open an index file, and compare it with its checksums to `verify` it.

        ValueError means that the file is damaged or not an index.
        """
        try:
            layout, metadata = _read_layout(os.fspath(path), verify=verify)
        except FileNotFoundError:
            raise
        except Exception as error:  # damage raises many types
            raise ValueError(f"{os.fspath(path)}: damaged or no index file ({error})") from error
        return cls(layout, metadata=metadata)

    @property
    def path(self) -> str:
        """Return the path of the index file."""
        return self._layout.path

    def __len__(self) -> int:
        return self._layout.count if self._selection is None else len(self._selection)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata written with the columns; other processes read it on first access."""
        if self._metadata is None:
            _, self._metadata = _read_layout(self._layout.path, verify=False)
        return self._metadata

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        """Return class names by annotated field, such as ``box_labels``."""
        return {k: tuple(v) for k, v in self.metadata.get("field_classes", {}).items()}

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, [len(self)], read-only; a KeyError lists the columns."""
        place = self._layout.columns.get(name)
        if place is None:
            return super().column(name)
        values = place.view(self._map())
        return values if self._selection is None else values[self._selection]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return values of a column at `indices`, [n]; read only these rows."""
        return self._layout.columns[name].view(self._map())[self.rows(indices)]

    def values_of(self, names: Sequence[str], indices: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return values of several columns at `indices`, [n] each."""
        rows, memory = self.rows(indices), self._map()
        return [self._layout.columns[name].view(memory)[rows] for name in names]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `indices` in the file, int64 [n]."""
        indices = np.asarray(indices, np.int64)
        # As an unsigned number, a negative index is too large.
        if indices.size and indices.view(np.uint64).max() >= len(self):
            wrong = next(int(i) for i in indices if not 0 <= i < len(self))
            raise IndexError(f"index {wrong} is outside 0 .. {len(self) - 1}")
        return indices if self._selection is None else self._selection[indices].astype(np.int64)

    def raw_keys(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Return the keys of `indices` as the stored bytes."""
        layout, rows = self._layout, self.rows(indices)
        if layout.key_pattern is not None:
            pattern, start = layout.key_pattern, layout.key_start
            return [pattern.format(start + row).encode() for row in rows.tolist()]
        return self._strings("key", rows)

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        r"""Return the keys of `indices`; bytes that are not UTF-8 become ``\xff``."""
        return list(self.key_column(indices))

    def key_column(self, indices: NDArray[np.int64]) -> list[str] | Keys:
        """Return the keys of `indices`; format numbered keys lazily."""
        pattern = self._layout.key_pattern
        if pattern is not None:
            return Keys(self.rows(indices) + self._layout.key_start, pattern)
        return [key.decode("utf-8", "backslashreplace") for key in self.raw_keys(indices)]

    def texts(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return texts of the index by number, int64 [n]."""
        return [text.decode() for text in self._strings("text", numbers)]

    def iter_raw_keys(self) -> Iterator[bytes]:
        """Yield all keys in order, with bounded memory."""
        for start in range(0, len(self), _CHUNK_ROWS):
            yield from self.raw_keys(np.arange(start, min(start + _CHUNK_ROWS, len(self))))

    def take(self, indices: NDArray[Any]) -> Index:
        """Return the index of selected rows, integer [n]; copy only the selection."""
        if self._selection is not None:
            indices = self.rows(indices)
        elif len(indices) and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"take: indices must lie in 0 .. {len(self) - 1}")
        return Index(self._layout, indices, self._metadata)

    def fingerprint(self) -> str:
        """Hash keys, sizes and labels, but not paths or times."""
        if self._selection is None:
            return self._layout.fingerprint
        if self._fingerprint is None:
            digest = hashlib.blake2b(self._layout.fingerprint.encode(), digest_size=16)
            _hash_array(digest, self._selection)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def _strings(self, name: str, numbers: NDArray[np.int64]) -> list[bytes]:
        memory, (offsets, text) = self._map(), self._layout.strings[name]
        ends, start = offsets.view(memory), text.offset
        return [
            memory[start + a : start + b]
            for a, b in zip(ends[numbers].tolist(), ends[numbers + 1].tolist(), strict=True)
        ]

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
            selection = (sent(os.fspath(selection.filename)), selection.shape)
        sent(self._layout.path)
        return self._layout, selection, self._fingerprint

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        layout, selection, fingerprint = state
        if isinstance(selection, tuple):
            selection = map_npy(received(selection[0]))
        layout = replace(layout, path=received(layout.path))
        self.__init__(layout, selection)  # type: ignore[misc]
        self._fingerprint = fingerprint


def cached_index(
    recipe: dict[str, Any],
    *,
    build: Callable[[Path], None],
    is_current: Callable[[Index], bool],
) -> Index:
    """Load the index of `recipe` from the cache, or build it if the data has changed."""

    def load(path: Path) -> Index | None:
        index = Index.open(path, verify=True)
        return index if is_current(index) else None

    name = f"index-{signature_of(recipe=recipe)}"
    what = f"index of {recipe.get('path', recipe.get('storage', 'the data'))}"
    return computed_once(name, ".npz", make=build, load=load, what=what)[1]


def cached_selection(name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Compute rows, integer [n], once and map them from the cache afterwards.

    `name` identifies everything that the selection depends on.
    """

    def make(path: Path) -> None:
        rows = compute()
        write_whole(path, lambda file: np.save(file, rows))

    return computed_once(
        f"rows-{signature_of(name=name)}", ".npy", make=make,
        load=map_npy, what="rows of a split",
    )[1]  # fmt: skip


def cached_json(name: str, compute: Callable[[], Any]) -> Any:
    """Compute JSON values once and read them from the cache afterwards."""
    _, (values,) = computed_once(
        f"json-{signature_of(name=name)}", ".json",
        make=lambda path: path.write_text(json.dumps([compute()])),
        load=lambda path: json.loads(path.read_bytes()), what="statistics of the training part",
    )  # fmt: skip
    return values


def is_unchanged(root: str, folders: Sequence[tuple[str, int]], index: Index) -> bool:
    """Return whether a new scan would give the same `index`.

    Folder times detect added and removed files. The sizes of a few files detect overwritten ones.
    """
    try:
        for folder, mtime_ns in folders:
            if os.stat(os.path.join(root, folder)).st_mtime_ns != mtime_ns:
                return False
    except OSError:
        return False
    rows = np.unique(np.linspace(0, len(index) - 1, min(_SPOT_CHECKS, len(index))).astype(np.int64))
    sizes = index.values("size_bytes", rows).tolist()
    for key, size in zip(index.raw_keys(rows), sizes, strict=True):
        try:
            found = os.stat(os.path.join(os.fsencode(root), key)).st_size
        except OSError:
            found = 0
        if found != size:
            return False
    return True

"""The table of records in memory, or mapped from an uncompressed ``.npz`` in the cache."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy, read_npy_header
from penstock.core.contracts import Index
from penstock.core.files import write_whole
from penstock.core.machine_cache import computed_once, sent, signature_of
from penstock.core.sample import Keys
from penstock.core.user_errors import ExplainedError

NO_LABEL = np.iinfo(np.int64).min
"""Marks a record without a label among labelled records."""
_CHUNK_ROWS = 1 << 18
_BLOCK = 64
"""Bytes of a member's header in an ``.npz`` of `Table.write`; blocks of values keep it aligned."""


def numbered(count: int, pattern: str = "{}", start: int = 0) -> Keys:
    """Return the keys of `count` records, each `pattern` with a number; no key is stored."""
    return Keys(range(start, start + count), pattern)


def shown_key(key: bytes) -> str:
    """Return a key as text, with escapes for bytes that are not UTF-8."""
    return key.decode("utf-8", "backslashreplace")


def constant(value: Any, count: int, dtype: Any = np.int64) -> NDArray[Any]:
    """Return a column [count] of one value, which takes no memory and no space in a file."""
    return np.broadcast_to(np.asarray(value, dtype), count)


class _Packed(NamedTuple):
    """Keys as one text of bytes, uint8, and the end of each, int32 or int64 [n + 1] from 0."""

    ends: NDArray[Any]
    text: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: Sequence[str | bytes]) -> _Packed:
        """Pack keys."""
        raw = [k.encode("utf-8", "surrogateescape") if isinstance(k, str) else k for k in keys]
        joined = b"".join(raw)
        ends = np.zeros(len(raw) + 1, np.int64 if len(joined) >= 1 << 31 else np.int32)
        ends[1:] = np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)))
        return cls(ends, np.frombuffer(joined, np.uint8))


class Table(Index):
    """Keys, columns and metadata of records, or of a selection of them.

    A table of a file, and a `np.memmap` selection, pickle as paths. The fingerprint covers the
    keys, the columns ``label`` and ``size_bytes``, and `content`. `metadata` are JSON values.
    """

    path: str | None = None
    _rows: NDArray[Any] | None = None
    _whole: str | None = None  # fingerprint without the selection

    def __init__(
        self,
        keys: Sequence[str | bytes] | Keys | _Packed,
        columns: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        content: str = "",
    ) -> None:
        self._keys = keys if isinstance(keys, Keys | _Packed) else _Packed.of(keys)
        self._count = len(self._keys.ends) - 1 if isinstance(self._keys, _Packed) else len(keys)
        self._arrays = {name: np.asarray(values) for name, values in (columns or {}).items()}
        self.columns = tuple(self._arrays)
        self.class_names = None if class_names is None else tuple(class_names)
        self.metadata = dict(metadata or {})
        self._content = content
        for name, values in self._arrays.items():
            if values.shape != (self._count,):
                said = f"{values.shape}, expected one value for each of the {self._count} keys"
                raise ValueError(f"index: column {name!r} has the shape {said}")

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
        """Map a file, and compare its checksums if `verify`; ValueError if it is damaged."""
        try:
            header, *arrays = _mapped(path, verify)
            about = json.loads(header.tobytes())
            count = about["count"]
            keys: Any = about["pattern"] and numbered(count, *about["pattern"])
            if keys is None:
                ends, text, *arrays = arrays
                keys = _Packed(ends[: count + 1], text)
            whole = [a[:count] if len(a) >= count else np.broadcast_to(a[0], count) for a in arrays]
            columns = dict(zip(about["columns"], whole, strict=True))
            table = cls(keys, columns, about["class_names"], about["metadata"])
        except FileNotFoundError:
            raise
        except Exception as error:  # damage raises many types
            raise ValueError(f"{os.fspath(path)}: damaged or no index file ({error})") from error
        table.path, table._whole = os.path.abspath(path), about["fingerprint"]
        return table

    def write(self, path: str | Path) -> None:
        """Write the table to a file, which appears under its name only when complete."""
        keys = self.replaced()._keys
        header = {
            "count": len(self),
            "columns": self.columns,
            "pattern": (keys.pattern, keys.values.start) if isinstance(keys, Keys) else None,
            "class_names": self.class_names,
            "fingerprint": self.fingerprint(),
            "metadata": self.metadata,
        }
        # The last space is repeated to a whole block.
        stored = [np.frombuffer(f"{json.dumps(header)} ".encode(), np.uint8)]
        stored += [] if isinstance(keys, Keys) else keys
        stored += [each[:1] if each.strides == (0,) else each for each in self.arrays.values()]
        # Whole blocks under names of this length begin at multiples of 64 bytes.
        blocks: Any = {
            f"{number:010}": np.pad(values, (0, -len(values) % _BLOCK), "edge")
            for number, values in enumerate(stored)
        }
        write_whole(path, lambda file: np.savez(file, **blocks))

    def replaced(self, **changes: Any) -> Table:
        """Return a table in memory with other arguments."""
        given = {"columns": self.arrays, "class_names": self.class_names, "metadata": self.metadata}
        keys = self._keys if self._rows is None else self.raw_keys()
        return Table(**{"keys": keys, **given, **changes})

    def plain(self) -> dict[str, Any]:
        """Return values that `core.record_codec` encodes, for `of_plain`."""
        keys: Any = self.replaced()._keys
        is_numbered = isinstance(keys, Keys)
        return {
            "keys": () if is_numbered else tuple(keys),
            "numbers": (len(keys), keys.pattern, keys.values.start) if is_numbered else None,
            "columns": self.arrays,
            "class_names": self.class_names,
            "metadata": self.metadata,
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Table:
        """Return the table of which `plain` returned these values."""
        numbers = plain["numbers"]
        keys = _Packed(*plain["keys"]) if numbers is None else numbered(*numbers)
        return cls(keys, plain["columns"], plain["class_names"], plain["metadata"])

    def __len__(self) -> int:
        return self._count if self._rows is None else len(self._rows)

    @property
    def field_classes(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        """Return class names by annotated field, such as ``box_labels``."""
        return {k: tuple(v) for k, v in self.metadata.get("field_classes", {}).items()}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: self.column(name) for name in self.columns}

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            return super().column(name)
        values = self._arrays[name]
        return values if self._rows is None else values[self._rows]

    def values(self, name: str, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._arrays[name][self.rows(indices)]

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of `indices` before the selection, int64 [n]."""
        indices = np.asarray(indices, np.int64)
        # As an unsigned number, a negative index is too large.
        if (wrong := indices[indices.view(np.uint64) >= len(self)]).size:
            raise IndexError(f"index {wrong[0]} is outside 0 .. {len(self) - 1}")
        return indices if self._rows is None else self._rows[indices].astype(np.int64)

    def raw_keys(self, indices: NDArray[np.int64] | None = None) -> list[bytes]:
        """Return the keys of `indices` as the stored bytes; None: all keys."""
        keys, rows = self._keys, self.rows(np.arange(len(self)) if indices is None else indices)
        if isinstance(keys, Keys):
            return [key.encode() for key in Keys(keys.values.start + rows, keys.pattern)]
        text, starts, ends = keys.text.data, keys.ends[rows].tolist(), keys.ends[rows + 1].tolist()
        return [bytes(text[start:end]) for start, end in zip(starts, ends, strict=True)]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        return list(self.key_column(indices))

    def key_column(self, indices: NDArray[np.int64]) -> list[str] | Keys:
        if isinstance(self._keys, Keys):
            return Keys(self._keys.values.start + self.rows(indices), self._keys.pattern)
        return list(map(shown_key, self.raw_keys(indices)))

    def take(self, indices: NDArray[Any]) -> Table:
        """Return the table of selected rows, integer [n]; copy only the selection."""
        rows = self.rows(indices)
        taken = Table.__new__(Table)
        # Keep `indices` that are mapped from a file.
        vars(taken).update(vars(self), _rows=indices if self._rows is None else rows)
        return taken

    def fingerprint(self) -> str:
        if self._whole is None:
            self._whole = self._hashed()
        if self._rows is None:
            return self._whole
        digest = hashlib.blake2b(self._whole.encode(), digest_size=16)
        _hash_array(digest, self._rows)
        return digest.hexdigest()

    def _hashed(self) -> str:
        digest, keys = hashlib.blake2b(self._content.encode(), digest_size=16), self._keys
        numbers = (keys.pattern, keys.values.start) if isinstance(keys, Keys) else (None, 0)
        digest.update(json.dumps([self._count, numbers, self.class_names]).encode())
        hashed: dict[str, Any] = {
            n: self._arrays[n] for n in ("label", "size_bytes") if n in self._arrays
        }
        if isinstance(keys, _Packed):
            digest.update(keys.text.data)
            hashed = {"key_offsets": keys.ends, **hashed}
        for name, values in hashed.items():
            digest.update(name.encode())
            _hash_array(digest, values)
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self.path is not None:
            state = {"path": sent(self.path), "_rows": self._rows, "_whole": self._whole}
        if isinstance(self._rows, np.memmap) and self._rows.filename is not None:
            state["_rows"] = sent(os.fspath(self._rows.filename))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if (path := state.pop("path", None)) is not None:
            vars(self).update(vars(Table.open(path)))
            if self._whole != state["_whole"]:
                raise ExplainedError("the data changed since the run began; start again")
        vars(self).update(state)
        if isinstance(self._rows, str):
            self._rows = map_npy(self._rows)


def _mapped(path: str | Path, verify: bool) -> list[NDArray[Any]]:
    """Map the arrays in an ``.npz``, read-only."""
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        if verify and (damaged := archive.testzip()):
            raise ValueError(f"{damaged} is not what was written")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays = []
        for member in archive.infolist():
            file.seek(member.header_offset + _BLOCK)
            shape, _, dtype = read_npy_header(file)
            arrays.append(np.ndarray(shape, dtype, memory, file.tell()))
        return arrays


def _hash_array(digest: Any, values: NDArray[Any]) -> None:
    """Add numbers to a digest, independently of the integer type."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    for start in range(0, len(values), _CHUNK_ROWS):
        digest.update(np.ascontiguousarray(values[start : start + _CHUNK_ROWS], dtype))


def by_part(
    ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield number, places in `rows` and own rows of the parts with `ends` that hold `rows`."""
    if not rows.size:
        return
    if len(ends) == 1:
        yield 0, np.arange(len(rows)), rows
        return
    parts = ends[:-1].searchsorted(rows, side="right")
    groups = [np.arange(len(rows))]
    if parts.min() != parts.max():
        order = np.argsort(rows, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(parts[order])) + 1)
    for places in groups:
        part = int(parts[places[0]])
        yield part, places, rows[places] - (ends[part - 1] if part else 0)


def cached_index(
    recipe: dict[str, Any],
    *,
    build: Callable[[], Table],
    is_current: Callable[[Table], bool] = lambda _: True,
) -> Table:
    """Load the table of `recipe` from the machine's cache, or build it if the data has changed."""

    def load(path: Path) -> Table | None:
        table = Table.open(path, verify=True)
        return table if is_current(table) else None

    name = f"index-{signature_of(recipe=recipe)}"
    what = f"index of {recipe.get('path', 'the data')}"
    return computed_once(name, ".npz", make=lambda p: build().write(p), load=load, what=what)[1]


def cached_selection(name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Compute rows, integer [n], once by `name`, and map them from the cache afterwards."""

    def make(path: Path) -> None:
        with open(path, "wb") as file:
            np.save(file, compute())

    name = f"rows-{signature_of(name=name)}"
    return computed_once(name, ".npy", make=make, load=map_npy, what="rows of a split")[1]

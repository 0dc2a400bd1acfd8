"""Read and write many `.npy` and `.npz` files of one or more samples each."""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import (
    look_at_header,
    view_npy,
)
from penstock.core.contracts import Storage
from penstock.core.registry import register
from penstock.core.sample import RecordError, too_large
from penstock.datasets.array_shards.shards import Columns, Unread
from penstock.datasets.array_shards.storage import ArrayForm, open_arrays
from penstock.datasets.array_shards.writer import ShardWriter
from penstock.datasets.files.access import (
    RangeFile,
    RangeStream,
    read_file,
    retried,
)
from penstock.datasets.files.zip_members import (
    DEFLATED,
    Member,
    list_members,
    read_member,
)
from penstock.datasets.records.labels import FileLabels, Unlabelled

_LOCAL_HEADER = struct.Struct("<26x2H")
# NumPy accepts headers of at most 10,000 bytes.
_HEAD_BYTES = 1 << 14
# Kinds of numbers, and text of a fixed width.
_KINDS = "biufcSU"


class NpyForm(ArrayForm):
    """`.npy` files, one array each, and `.npz` archives."""

    name = "npy_shards"
    endings = (".npy", ".npz")

    def columns(self, path: str, root: str, where: str, *, checked: bool) -> Columns:
        """Map the array of a `.npy` file or the arrays of an archive; compressed: `Unread`."""
        status = retried(lambda: os.stat(path), path=path, root=root)
        file = RangeFile(path, root=root)
        memory: mmap.mmap | None = None
        columns: dict[str | None, Any] = {}
        for name, place in _look(path, root, where, status.st_size, status.st_mtime_ns).items():
            dtype, member = np.dtype(place.dtype), place.member
            if member is not None and member.method == DEFLATED:
                columns[name] = Unread(dtype, place.shape, partial(_array, file, member))
                continue
            if checked and member is not None:
                _content(file, member)
            memory = memory or retried(partial(map_file, path), path=path, root=root)
            array = np.frombuffer(memory, dtype, math.prod(place.shape), place.offset)
            columns[name] = array.reshape(place.shape)
        return columns

    def sample(self, path: str, root: str, *, checked: bool, max_bytes: int) -> dict[str, Any]:
        """Read the array of a `.npy` file as ``array``, or the members of an archive."""
        if not path.lower().endswith(".npz"):
            return {"array": view_npy(read_file(path, root=root, max_bytes=max_bytes))}
        file = RangeFile(path, root=root)
        size = retried(lambda: os.stat(path).st_size, path=path, root=root)
        members = list_members(RangeStream(file, size))
        if (size_bytes := sum(member.size_bytes for member in members)) > max_bytes:
            raise ValueError(too_large(size_bytes, max_bytes))
        return {m.name.removesuffix(".npy"): view_npy(_content(file, m)) for m in members}


class _Place(NamedTuple):
    """Place of an array in a file, or, if `member` is compressed, in the member."""

    shape: tuple[int, ...]
    dtype: str
    offset: int
    member: Member | None


@lru_cache(1 << 14)
def _look(path: str, root: str, where: str, size: int, mtime_ns: int) -> dict[str | None, _Place]:
    """Read the headers in a file; cached, since shards are opened repeatedly."""
    file = RangeFile(path, root=root)
    view: Any = RangeStream(file, size)
    if not path.lower().endswith(".npz"):
        return {None: _Place(*look_at_header(view, size, where, kinds=_KINDS), None)}
    try:
        members = list_members(view)
    except RecordError as error:
        raise ValueError(f"{where}: {error}") from error
    return {
        member.name.removesuffix(".npy"): _look_at_member(file, member, f"{where}: {member.name}")
        for member in members
    }


def _look_at_member(file: RangeFile, member: Member, where: str) -> _Place:
    deflated = member.method == DEFLATED
    try:
        header = file.read(member.offset, _LOCAL_HEADER.size)
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(header)
        start = member.offset + 30 + name_bytes + extra_bytes
        head = file.read_upto(start, min(member.stored_bytes, _HEAD_BYTES))
        if deflated:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, _HEAD_BYTES)
        elif member.stored_bytes != member.size_bytes:
            raise RecordError(f"{member.stored_bytes:,} bytes cannot be {member.size_bytes:,}")
    except (RecordError, zlib.error, struct.error) as error:
        raise ValueError(f"{where} is damaged ({error}); copy the archive again") from error
    shape, dtype, offset = look_at_header(io.BytesIO(head), member.size_bytes, where, kinds=_KINDS)
    return _Place(shape, dtype, offset if deflated else start + offset, member)


def map_file(path: str) -> mmap.mmap:
    """Map a file, read-only."""
    with open(path, "rb", buffering=0) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _content(file: RangeFile, member: Member) -> bytes:
    try:
        return read_member(file, member)
    except RecordError as error:
        raise ValueError(f"{member.name}: {error}") from error


def _array(file: RangeFile, member: Member) -> NDArray[Any]:
    return view_npy(_content(file, member))


@register("storage", "npy_shards")
def open_npy_shards(
    path: str,
    *,
    rows: bool = True,
    labels: str | None = "folder",
    label_pattern: str | None = None,
    label_columns: tuple[str, str] = ("key", "label"),
    unlabelled: Unlabelled = None,
    classes: list[str] | None = None,
    checksums: bool = False,
) -> Storage:
    """Arrays in many `.npy` and `.npz` files; nothing is ever unpickled.

    With `rows`, samples lie along the first axis. A `.npy` file holds one field
    of some of them: ``images_007.npy`` is the field ``image`` of shard 007, and
    ``labels_007.npy``, ``images/007.npy`` or ``007/images.npy`` belong to it. An `.npz` file is
    a shard with a member for each field; uncompressed members are mapped like files.
    All shards have the same fields; if their shapes and types agree too, batches are read as
    a whole. Large rows are read-only views of the map. ``keys`` holds the keys; the default is
    row numbers.

    Without `rows`, a file is a sample: a `.npy` file has the field ``array``, an `.npz` file a
    field for each member. Keys are paths; labels work as in an image folder.

    Args:
        path: A folder, a file, or a pattern.
        rows: Whether files hold samples along their first axis, or are one sample each.
        labels: Without `rows`: ``folder``, ``filename``, the path of a CSV, ``file`` (labels inside
            the files, which are all read once), or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the columns of the keys and of the labels.
        unlabelled: Files without a row in the CSV; see `ImageFolder`.
        classes: Class names by id; None: with `rows`, the lines of ``classes.txt``, or the numbers;
            without, the classes found.
        checksums: Verify the members of `.npz` files when a process opens a file, which reads all
            of it. Compressed members are always verified.
    """
    label_files = partial(FileLabels.of, labels, label_pattern, label_columns, unlabelled)
    return open_arrays(
        NpyForm(), path, rows=rows, labels=label_files, classes=classes, checksums=checksums
    )


@register("writer", "npy_shards")
class NpyShardsWriter(ShardWriter):
    """A folder of ``image_00000.npy``, ``label_00000.npy``, ..., which `numpy.load` opens."""

    def _write(
        self, folder: Path, number: int, keys: list[str], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        arrays = {"key": np.array(keys), **arrays}
        files = {f"{name}_{number:05d}.npy": array for name, array in arrays.items()}
        for name, array in files.items():
            np.save(folder / name, array, allow_pickle=False)
        return tuple(files)

"""Arrays in files, one per field: `.npy` files, which say what they hold, and raw ones."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_FIELDS = {"images": "image", "labels": "label", "masks": "mask", "keys": "key"}
_RESERVED = ("index", "key", "position", "epoch", "valid")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array in a file, the samples along its first axis.

    Attributes:
        path: The file.
        shape: Shape of the array, the number of samples first.
        dtype: Its type, as NumPy writes it, such as ``|u1`` or ``<f4``.
        offset: Where in the file it begins, in bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def size_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def map(self) -> NDArray[Any]:
        """The array, read-only, mapped from the file.

        Raises:
            ValueError: The file is shorter than it was when it was looked at.
        """
        mapped = np.memmap(self.path, np.dtype(self.dtype), "r", self.offset, self.shape)
        # Of the base class: each view of an np.memmap costs a microsecond more.
        return mapped.view(np.ndarray)

    def mark(self) -> list[int]:
        """Size and time of the file: what changes when it is written anew."""
        found = os.stat(self.path)
        return [found.st_size, found.st_mtime_ns]


def find_array_files(
    path: str | Mapping[str, str], raw: Sequence[str], *, where: str
) -> dict[str, str]:
    """The file of every field.

    Args:
        path: A folder; one file, which holds the images; or files by field name.
        raw: Fields whose files are no `.npy` files.
        where: What messages call the storage.

    Returns:
        Paths by field name, ``image`` and ``label`` first.

    Raises:
        ValueError: There are none, or two of one field, or a field may not be called so.
    """
    if isinstance(path, Mapping):
        files = {field: os.path.abspath(file) for field, file in path.items()}
    elif os.path.isdir(path):
        files = _in_folder(Path(path), raw, where)
    else:
        files = {"image": os.path.abspath(path)}
    if not files:
        raise ValueError(
            f"{where}: no .npy file in there, expected one for each field, such as images.npy and "
            f"labels.npy; for raw files give the shape of a sample: "
            f"dataset.storage.shapes.image=[32,32,3]"
        )
    for field, file in files.items():
        check_field(field, os.path.basename(file), where=where)
        if not os.path.isfile(file):
            what = "a folder" if os.path.isdir(file) else "nothing there"
            raise ValueError(
                f"{where}: expected an array file at {file}, got {what}; set dataset.storage.path"
            )
    for field in raw:
        if field not in files:
            raise ValueError(
                f"{where}: shapes names the field {field!r}, which has no file; fields: "
                f"{', '.join(files)}"
            )
    return {field: files[field] for field in sorted(files, key=field_place)}


def look_at_npy(path: str, *, where: str) -> ArrayFile:
    """What a `.npy` file holds, as its header says. Nothing is unpickled.

    Raises:
        ValueError: It is damaged, cut short, or holds what cannot be mapped.
        OSError: It cannot be read.
    """
    name = os.path.basename(path)
    with open(path, "rb") as file:
        if file.read(4) == _ZIP:
            raise ValueError(
                f"{where}: {name} is an archive (.npz), which cannot be mapped; unpack it and "
                f"name one .npy file per field, or use dataset=npy_shards"
            )
        file.seek(0)
        remedy = "give the shape of a sample in a raw file: dataset.storage.shapes"
        size = os.path.getsize(path)
        shape, dtype, offset = look_at_header(file, size, f"{where}: {name}", remedy=remedy)
    return ArrayFile(path, shape, dtype, offset)


def look_at_header(
    file: IO[bytes],
    size_bytes: int,
    where: str,
    *,
    remedy: str = "copy it again",
    kinds: str = "biufc",
    rows: bool = True,
) -> tuple[tuple[int, ...], str, int]:
    """Shape, type and place of the array in a `.npy` file (NumPy's NEP 1). Nothing is unpickled.

    Args:
        file: Stands at the file's start; at the array's when this returns.
        size_bytes: Size of the whole file.
        where: What messages call it.
        remedy: What else than writing it with NumPy may help where it is no such file.
        kinds: Kinds of types that are taken, as NumPy names them.
        rows: Whether it must have an axis of samples, none of whose samples is scattered.

    Returns:
        The shape, the type as NumPy writes it, and the first byte of the array.

    Raises:
        ValueError: It is damaged, cut short, or holds what cannot be mapped.
    """
    try:
        shape, fortran, dtype = _npy_header(file)
    except Exception as error:  # of many kinds: NumPy lets Python's own parser read it
        raise ValueError(
            f"{where} is no .npy file, or a damaged one ({_line(error)}); write it "
            f"with np.save, or {remedy}"
        ) from None
    offset = file.tell()
    if dtype.hasobject:
        raise ValueError(
            f"{where} holds Python objects (pickled), which are never loaded; save one "
            f"array of numbers per field"
        )
    if dtype.kind not in kinds or (dtype.kind == "u" and dtype.itemsize == 8 and len(shape) == 1):
        raise ValueError(
            f"{where} holds {dtype}, expected numbers that a tensor can hold; save it "
            f"with another type, such as int64"
        )
    if rows and not shape:
        raise ValueError(f"{where} holds one number, expected an axis of samples first")
    if fortran and len(shape) > 1:
        raise ValueError(
            f"{where} is in Fortran order, in which a sample is scattered over the file; "
            f"save np.ascontiguousarray(array)"
        )
    missing = offset + math.prod(shape) * dtype.itemsize - size_bytes
    if missing > 0:
        raise ValueError(
            f"{where} is cut short: {missing:,} bytes of {dtype} {list(shape)} are "
            f"missing; copy it again"
        )
    return shape, dtype.str, offset


def look_at_raw(
    path: str, shape: Sequence[int], dtype: str, offset: int, *, where: str
) -> ArrayFile:
    """What a file without a header holds: as many samples as fit into it.

    Args:
        path: The file.
        shape: Shape of one sample; empty for one number.
        dtype: Type of the numbers.
        offset: Bytes before the first sample.
        where: What messages call the storage.

    Raises:
        ValueError: The type or the shape is none, or the file ends within a sample.
    """
    name, size = os.path.basename(path), os.path.getsize(path)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "biufc":
        raise ValueError(
            f"{where}: {name}: type {dtype!r}; expected one of numbers, such as uint8, int64, "
            f"float32 or '>u2'"
        )
    sample_bytes = math.prod(shape) * kind.itemsize
    if not all(length > 0 for length in shape) or offset < 0:
        raise ValueError(
            f"{where}: {name}: sample shape {list(shape)} from byte {offset} on; expected lengths "
            f"above 0 and an offset of 0 or more"
        )
    if size < offset or (size - offset) % sample_bytes:
        raise ValueError(
            f"{where}: {name} has {size:,} bytes, expected {offset} and a multiple of "
            f"{sample_bytes:,} ({kind} {list(shape)}); check shapes, dtypes and offsets, or "
            f"copy it again"
        )
    return ArrayFile(path, ((size - offset) // sample_bytes, *shape), kind.str, offset)


def field_name(stem: str) -> str:
    """The field of a file or an array: these are named for many, such as ``images``."""
    return _FIELDS.get(stem, stem)


def check_field(field: str, named: str, *, where: str, taken: Sequence[str] = ()) -> None:
    """Raise ValueError for a name that no field may have; `named` is what would give it.

    `taken` are names of the framework's own that the storage knows what to do with.
    """
    reserved = [name for name in _RESERVED if name not in taken]
    if field in reserved or not _FIELD.fullmatch(field):
        raise ValueError(
            f"{where}: {named} would be a field {field!r}, expected a name of "
            f"letters, digits and _ that is none of {', '.join(reserved)}; rename it"
        )


def _in_folder(folder: Path, raw: Sequence[str], where: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        field = field_name(file.stem)
        if (file.suffix == ".npy") == (field in raw):
            continue
        if field in files:
            raise ValueError(
                f"{where}: {os.path.basename(files[field])} and {file.name} are both the field "
                f"{field!r}; rename one, or name the files: "
                f"dataset.storage.path={{{field}: {file.name}}}"
            )
        files[field] = str(file.absolute())
    return files


def _npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"format version {version[0]}.{version[1]}")
    if any(length < 0 for length in header[0]):
        raise ValueError(f"shape {header[0]}")
    return header


def field_place(field: str) -> tuple[int, str]:
    """Where a field stands among others: ``image``, ``label``, then by name."""
    order = ("image", "label")
    return (order.index(field) if field in order else len(order)), field


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

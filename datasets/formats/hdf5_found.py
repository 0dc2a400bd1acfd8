"""What a look through HDF5 files finds: their arrays, and an index of where the pieces lie."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.data_files import DataFiles
from datasets.formats.hdf5_arrays import Array, ArrayType
from datasets.formats.hdf5_filters import KNOWN_FILTERS, MOST_EXPANSION
from datasets.formats.hdf5_process import ScanError, Scanner
from datasets.index import Index, write_index


@dataclass(frozen=True, slots=True)
class FoundArray:
    """An array that a scan found.

    Attributes:
        sample: The group of the sample that it belongs to; None where its rows are samples.
        name: Its path below that group, or below the group of the data.
        array: Its type, shape and places.
        class_names: Names of classes in its attributes.
        packed: What a packer wrote about it, JSON.
    """

    sample: str | None
    name: str
    array: Array
    class_names: list[str] | None
    packed: str | None


@dataclass(slots=True)
class FoundFile:
    """What is in one file.

    Attributes:
        layout: ``arrays`` (a row is a sample) or ``groups`` (a group is a sample).
        base: Bytes before the address 0.
        class_names: Names of classes in attributes of the group or the file.
        packed: It was packed here: names are those of fields, and files may lack some.
        arrays: Its arrays.
        samples: Its samples and their labels, where these are attributes, in order.
    """

    layout: str
    base: int
    class_names: list[str] | None
    packed: bool
    arrays: list[FoundArray] = field(default_factory=list)
    samples: list[tuple[str, int | str | None]] = field(default_factory=list)


def write_places(
    path: Path, files: DataFiles, group: str, fields: Sequence[str] | None, *, where: str
) -> None:
    """Look through files and write the index of the pieces of their arrays.

    Raises:
        ValueError: One is damaged, or holds what is not read.
    """
    found: list[list[Any]] = []
    places: list[NDArray[np.int64]] = [np.zeros((0, 3), np.int64)]
    types: list[list[Any]] = []
    count = 0
    shown = where
    try:
        with Scanner() as scanner:
            for name, file, (size, _) in zip(files.names, files.paths, files.marks, strict=True):
                shown = f"{where}: {name}" if len(files.names) > 1 else where
                entry: list[Any] = []
                for message, pieces in scanner.scan(file, group, list(fields) if fields else None):
                    kind = message.pop("kind")
                    if kind == "file":
                        names, packed = message["class_names"], message["packed"] is not None
                        entry = [message["layout"], message["base"], names, packed, [], []]
                    elif kind == "sample":
                        entry[5].append([message["name"], message["label"]])
                    else:
                        entry[4].append(_entry(message, pieces, count, types, size))
                        places.append(pieces)
                        count += len(pieces)
                found.append(entry)
    except ScanError as error:
        raise ValueError(f"{shown}: {error}") from None
    table = np.concatenate(places)
    write_index(
        path,
        key_pattern="{}",
        count=len(table),
        columns={
            "offset": table[:, 0],
            "stored_bytes": table[:, 1],
            "mask": table[:, 2].astype(np.uint32),
        },
        content=repr(types),
        metadata={"files": files.recipe, "types": types, "found": found},
    )


def read_found(index: Index) -> tuple[list[FoundFile], list[ArrayType]]:
    """What `write_places` wrote about each file, and the types that its arrays share."""
    types = [
        ArrayType(kind, dtype, tuple((code, tuple(values)) for code, values in filters))
        for kind, dtype, filters in index.metadata["types"]
    ]
    files = []
    for layout, base, class_names, packed_here, arrays, samples in index.metadata["found"]:
        files.append(FoundFile(layout, base, class_names, packed_here))
        files[-1].samples = [(name, label) for name, label in samples]
        for sample, name, number, shape, chunks, first, names, packed in arrays:
            array = Array(
                types[number], tuple(shape), None if chunks is None else tuple(chunks), first
            )
            files[-1].arrays.append(FoundArray(sample, name, array, names, packed))
    return files, types


def _entry(
    message: dict[str, Any],
    pieces: NDArray[np.int64],
    first: int,
    types: list[list[Any]],
    file_bytes: int,
) -> list[Any]:
    """An array as the index's metadata holds it; its places are checked here."""
    sample, name, value = message["sample"], message["name"], message["value"]
    shown = repr(name if sample is None else f"{sample}/{name}")
    for code, _, text in message["filters"]:
        if code not in KNOWN_FILTERS:
            raise ScanError(
                f"{shown} was compressed by the filter {text or code!r} ({code}), which is not "
                f"read; write it anew with gzip or without: h5repack -f GZIP=4"
            )
    filters = [[code, values] for code, values, _ in message["filters"]]
    about = [value["kind"], value["dtype"], filters]
    if about not in types:
        types.append(about)
    shape, chunks = [*message["shape"], *value["shape"]], message["chunks"]
    if chunks is not None:
        chunks = [*chunks, *value["shape"]]
    kind = ArrayType(value["kind"], value["dtype"], ())
    _check_places(shown, pieces, shape, chunks, kind.element.itemsize, bool(filters), file_bytes)
    return [
        sample, name, types.index(about), shape, chunks, first, message["class_names"],
        message["packed"],
    ]  # fmt: skip


def _check_places(
    shown: str,
    pieces: NDArray[np.int64],
    shape: list[int],
    chunks: list[int] | None,
    item_bytes: int,
    filtered: bool,
    file_bytes: int,
) -> None:
    """Raise ScanError for pieces that cannot hold the array, or lie outside the file."""
    offset, size = pieces[:, 0], pieces[:, 1]
    if len(shape) > 1 and shape[0] and not math.prod(shape[1:]):
        if shape[0] > file_bytes:
            raise ScanError(f"{shown} has the shape {shape}; damaged")
    if not len(pieces):
        return
    if int(offset.min()) < 0 or int(size.min()) < 0 or int((offset + size).max()) > file_bytes:
        raise ScanError(f"{shown} lies outside the file, which is cut short or damaged")
    wanted = math.prod(chunks if chunks is not None else shape) * item_bytes
    smallest, largest = int(size.min()), int(size.max())
    if not filtered and (smallest, largest) != (wanted, wanted):
        raise ScanError(f"{shown} has {largest:,} bytes in a piece and should have {wanted:,}")
    if wanted > (largest + 64) * MOST_EXPANSION:
        raise ScanError(f"{shown} says that {largest:,} bytes hold {wanted:,}; damaged")


def data_path(path: str) -> tuple[str, str]:
    """A path split into that of the files and the group in them, as in ``data.h5/train``."""
    parts = path.split(os.sep)
    for count in range(len(parts), 0, -1):
        start = os.sep.join(parts[:count]) or os.sep
        if os.path.exists(start) or start.lower().endswith(ENDINGS):
            if os.path.isdir(start) and count < len(parts):
                break
            return start, "/".join(parts[count:])
    return path, ""


ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
"""Of files in a folder, and of those that a group may be named behind."""

"""Write records into arrays, a `.npy` file for each field."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Writer
from penstock.core.files import write_lines
from penstock.core.parts import PackPlan, Part, PartSummary, Written, written_keys
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.array_shards.writer import to_arrays
from penstock.datasets.records.labels import CLASSES_NAME
from penstock.datasets.storages.memmap.storage import KEYS_NAME

_BUFFER_BYTES = 1 << 22
_FILES = {"image": "images.npy", "label": "labels.npy"}


@register("writer", "memmap")
class MemmapWriter(Writer):
    """A folder of arrays with a row for each record: images.npy, labels.npy and so on.

    All records have the same fields, each of one shape and type: images are decoded pixels of
    one size. ``classes.txt`` holds the class names, and ``keys.txt`` any keys other than row
    numbers, one a line.
    """

    version = 2
    part_records = 8192
    part_bytes = 1 << 26
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check the samples and the names of classes."""
        if not plan.samples:
            raise ValueError("pack: memmap: none of the first records can be read; repair them")
        to_arrays(plan.samples)
        for name in plan.class_names or ():
            _refuse_lines(name, "class name")

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write the rows of each field into a separate file."""
        found = list(records)
        for record in found:
            _refuse_lines(record.key, "key")
        names = []
        for name, array in to_arrays([plan.samples[0], *found]).items():
            names.append(f"{name}-{part.number:06d}")
            array[1:].astype(array.dtype.newbyteorder("<")).tofile(folder / names[-1])
        return Written(spooled=tuple(names))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Write the rows of a part into their places in the arrays."""
        rows_of = zip(to_arrays(plan.samples[:1]).items(), summary.written.spooled, strict=True)
        for (name, like), spooled in rows_of:
            path = folder / _FILES.get(name, f"{name}.npy")
            with open(path, "r+b" if path.exists() else "wb") as file:
                file.seek(len(_header(like, len(plan))) + summary.first * like.nbytes)
                with open(folder / spooled, "rb") as rows:
                    shutil.copyfileobj(rows, file, _BUFFER_BYTES)

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write headers, class names and keys."""
        arrays, count = to_arrays(plan.samples[:1]), sum(map(len, summaries))
        for name, like in arrays.items():
            header = _header(like, count)
            assert len(header) == len(_header(like, len(plan)))  # NumPy leaves room for the count
            with open(folder / _FILES.get(name, f"{name}.npy"), "r+b") as file:
                file.write(header)
                file.truncate(len(header) + count * like.nbytes)
                file.flush()
                os.fsync(file.fileno())
        if "label" in arrays and plan.class_names:
            write_lines(folder / CLASSES_NAME, plan.class_names)
        keys = written_keys(plan, summaries)
        if any(key != b"%d" % number for number, key in enumerate(keys)):
            write_lines(folder / KEYS_NAME, keys)


def _header(like: NDArray[Any], rows: int) -> bytes:
    """Return the header of a file of `rows` rows like the only row of `like`; NumPy's NEP 1."""
    file = io.BytesIO()
    dtype = like.dtype.newbyteorder("<").str
    about = {"descr": dtype, "fortran_order": False, "shape": (rows, *like.shape[1:])}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _refuse_lines(text: str, what: str) -> None:
    if "\n" in text:
        raise ValueError(
            f"pack: memmap: the {what} {text!r} has a line break, and each is a line of a file; "
            f"rename it, or pack it as lmdb"
        )

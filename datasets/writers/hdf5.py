"""Records into HDF5 files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.formats.hdf5_fields import check_fields, write_fields
from datasets.formats.hdf5_objects import PACKED
from datasets.parts import PackPlan, Part, PartSummary, Written, raw_keys
from datasets.sample import Record
from pipeline.registry import register


@register("writer", "hdf5")
class Hdf5Writer:
    """A folder of files ``part-00000-of-00012.h5``, each whole by itself.

    A field is a dataset of its name with a row per record: arrays of one shape and type as they
    are, encoded images and arrays of other shapes as lists, the shapes beside; see
    `datasets.formats.hdf5_fields`. ``keys`` and ``class_names`` are texts. Nothing is compressed,
    so that arrays can be read where they lie.
    """

    version = 1
    part_records = 8192
    part_bytes = 1 << 27
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether the samples can be held."""
        try:
            import h5py  # noqa: F401
        except ImportError:
            raise ValueError(
                "pack.to=hdf5: the package h5py is missing; run: pip install h5py"
            ) from None
        for record in plan.samples:
            check_fields(record.fields, key=record.key)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write a file; none for a part without records."""
        import h5py

        found: list[dict[str, Any]] = []
        rows = []
        for record in records:
            check_fields(record.fields, key=record.key)
            found.append(record.fields)
            rows.append(record.index)
        if not found:
            return Written()
        labelled = sum("label" in fields for fields in found)
        if labelled not in (0, len(found)):
            raise ValueError(
                f"pack.to=hdf5: {labelled} of {len(found)} records have a label; all or none"
            )
        name = f"part-{part.number:05d}-of-{len(plan.parts):05d}.h5"
        text = h5py.string_dtype()
        # Put together in memory: the library does not come back from a disk that is full.
        whole = io.BytesIO()
        with h5py.File(whole, "w") as file:
            file.attrs[PACKED] = "1"
            file["keys"] = np.array(raw_keys(plan.index, np.array(rows)), object).astype(text)
            if plan.class_names is not None:
                file.create_dataset("class_names", data=list(plan.class_names), dtype=text)
            write_fields(file, found)
        (folder / name).write_bytes(whole.getbuffer())
        return Written(files=(name,))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Nothing: a part is a file of the result."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Nothing: every file says what is in it."""

"""Write records into HDF5 files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.parts import PackPlan
from penstock.core.registry import register
from penstock.datasets.storages.arrays import ShardWriter
from penstock.datasets.storages.hdf5.file import import_h5py


@register("writer", "hdf5")
class Hdf5Writer(ShardWriter):
    """A folder of files ``part-00000.h5``, each complete by itself.

    Numbers, texts, and arrays of one shape and type are data sets of their names with a row for
    each record, and encoded images are rows of variable length. Nothing is compressed, so that
    arrays can be mapped.
    """

    version = 4
    part_bytes = 1 << 27
    texts = True
    cannot_hold = frozenset(("pixels", "shapes", "bytes", "values", "missing", "no image"))

    def begin(self, folder: Path, plan: PackPlan) -> None:
        import_h5py()
        super().begin(folder, plan)

    def _save(self, folder: Path, number: str, arrays: dict[str, Any]) -> list[str]:
        h5py = import_h5py()
        # Written in memory first: the library hangs on a full disk.
        whole = io.BytesIO()
        with h5py.File(whole, "w") as file:
            for name, array in arrays.items():
                if name == "key":
                    array = np.array([os.fsencode(key) for key in array.tolist()], object)
                if name == "image" and array.dtype.hasobject:
                    rows = file.create_dataset(name, array.shape, h5py.vlen_dtype(np.uint8))
                    for row, content in enumerate(array):
                        rows[row] = np.frombuffer(content, np.uint8)
                else:
                    kind = h5py.string_dtype() if array.dtype.hasobject else array.dtype
                    file.create_dataset(name, data=array, dtype=kind)
        (folder / f"part-{number}.h5").write_bytes(whole.getbuffer())
        return [f"part-{number}.h5"]

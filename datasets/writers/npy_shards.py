"""Records into `.npy` files, one per field and part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.parts import PartSummary
from datasets.shard_writer import ShardWriter
from pipeline.registry import register


@register("writer", "npy_shards")
class NpyShardsWriter(ShardWriter):
    """A folder of ``image_00000.npy``, ``label_00000.npy``, ..., which `numpy.load` opens.

    Values of differing shapes are `datasets.shard_writer.ShardWriter`'s: ``image.offsets_00000``
    and so on beside them.
    """

    def _check(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """There is nothing that NumPy cannot save."""

    def _write(
        self, folder: Path, number: int, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[str, ...]:
        files = {f"{name}_{number:05d}.npy": array for name, array in arrays.items()}
        for name, array in files.items():
            np.save(folder / name, array, allow_pickle=False)
        return tuple(files)

    def _fields(self, folder: Path, summary: PartSummary) -> set[str]:
        names = (name.rpartition("_")[0] for name in summary.written.files)
        return {name for name in names if "." not in name}

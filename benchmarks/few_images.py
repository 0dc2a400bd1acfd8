"""A storage of any length that serves the same few images: ``imports=[benchmarks/few_images.py]``.

Its index is a real one, of as many records as it was written with; only the bytes repeat.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Storage
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table, numbered


def write_few_images(path: Path, *, count: int, classes: int = 100) -> None:
    """Write the index of `count` records at `path`."""
    labels = (np.arange(count) % classes).astype(np.int32)
    names = [f"class {number}" for number in range(classes)]
    Table(numbered(count, "image_{:09d}.jpg"), {"label": labels}, names).write(path)


@register("storage", "few_images")
class FewImages(Storage):
    """Records whose image is the file of that number, modulo the number of files.

    Args:
        path: The index that `write_few_images` wrote.
        images: A folder of images.
    """

    def __init__(self, path: str, images: str) -> None:
        self.index = Table.open(path)
        self._images = [file.read_bytes() for file in sorted(Path(images).iterdir())]

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n]."""
        labels = self.index.values("label", indices).tolist()
        keys = self.index.keys(indices)
        return [
            Record(i, key, {"image": self._images[i % len(self._images)], "label": label})
            for i, key, label in zip(indices.tolist(), keys, labels, strict=True)
        ]

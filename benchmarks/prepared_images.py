"""Images that need only a crop and a flip: data that costs almost nothing to prepare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.contracts import Dataset
from penstock.core.rng import KeyedRng, Stream
from penstock.datasets.records.table import Table


class PreparedImages(Dataset):
    """Uint8 images of one size in a file: a random crop and a flip of each.

    Args:
        path: A ``.npy`` file, uint8 [n, side, side, 3].
        crop: Side of the crop.
    """

    def __init__(self, path: Path, crop: int) -> None:
        self.path, self.crop = path, crop
        self._images: Any = None
        self.index = Table([f"{n}" for n in range(len(self))])

    @property
    def images(self) -> Any:
        """The file, mapped into memory by the process that reads it."""
        if self._images is None:
            self._images = np.load(self.path, mmap_mode="r")
        return self._images

    def __len__(self) -> int:
        return len(self.images)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": None}

    @property
    def row_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Every image has the size of the crop."""
        return self.crop, self.crop, 3

    def read(self, indices: Any, positions: Any, epoch: int) -> list[int]:
        """Return the indices; `finish` reads the images as it crops them."""
        return list(indices.tolist())

    def finish(
        self,
        records: Sequence[int],
        positions: Any,
        epoch: int,
        *,
        rows: Any = None,
        times: Any = None,
    ) -> list[Any]:
        """Crop and flip."""
        rng, samples = KeyedRng(), []
        room = self.images.shape[1] - self.crop + 1
        for row, (record, position) in enumerate(zip(records, positions.tolist(), strict=True)):
            top, left, flip = rng.at(0, epoch, position, Stream.AUGMENT).integers(
                0, (room, room, 2)
            )
            image = self.images[record, top : top + self.crop, left : left + self.crop]
            image = image[:, ::-1] if flip else image
            into = np.empty(self.row_shape, np.uint8) if rows is None else rows[row]
            into[...] = image
            samples.append({"image": into, "label": record % 1000, "position": position})
        return samples

    def fetch(self, indices: Any, positions: Any, epoch: int) -> list[Any]:
        """Read and finish."""
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    def fingerprint(self) -> str:
        """Return a constant for each length: any noise will do."""
        return f"noise {len(self)}"


def make_images(path: Path, count: int, side: int) -> Path:
    """Write noise to a ``.npy`` file, uint8 [count, side, side, 3]; no measurement looks at it."""
    shape = (count, side, side, 3)
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    noise = np.random.default_rng(0).integers(0, 256, (64, *shape[1:]), np.uint8)
    for start in range(0, count, 64):
        images[start : start + 64] = noise[: count - start]
    return path

"""Components of this project, registered for use in `conf/` and on the command line."""

from typing import Any

import numpy as np

from penstock import register
from penstock.core.contracts import Sampler


@register("transform", "vignette")
def vignette(
    sample: dict[str, Any], rng: np.random.Generator, *, strength: float = 0.5
) -> dict[str, Any]:
    """Corners darkened by up to a share of their brightness."""
    height, width = sample["image"].shape[:2]
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    shade = 1 - rng.uniform(0, strength) * (x**2 + y**2) / 2
    return {**sample, "image": (sample["image"] * shade[..., None]).astype(np.uint8)}


@register("sampler", "every_other")
class EveryOther(Sampler):
    """Records 0, 2, 4 ..., and in the next epoch 1, 3, 5 ...: a pure function of the position."""

    def __init__(self, *, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n // 2

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Records at positions `start` to `stop`."""
        return 2 * np.arange(start, stop, dtype=np.int64) + epoch % 2

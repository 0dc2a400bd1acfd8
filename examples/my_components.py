"""A custom sampler, transform and storage: ``imports=[examples/my_components.py]``."""

# fmt: off
import numpy as np

from penstock.core.contracts import Sampler, Storage
from penstock.core.registry import register
from penstock.core.rng import Stream, philox_words
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.table import Table


@register("sampler", "repeated")
class Repeated(Sampler):
    """Every record several times in a row, each augmented anew (Hoffer et al., CVPR 2020)."""
    def __init__(self, n: int, seed: int, *, times: int = 2) -> None:
        self.n, self.seed, self.times = n, seed, times
    def __len__(self) -> int:
        return self.n * self.times
    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:  # noqa: D102
        order = philox_words(self.seed, epoch, 0, self.n, Stream.SAMPLER)[:, 0].argsort()
        return order[np.arange(start, stop) // self.times]
@register("transform", "exposure")
def exposure(sample: dict, rng: np.random.Generator, *, stops: float = 0.5) -> dict:
    """Images brighter or darker by up to so many stops."""
    bright = (sample["image"] * 2.0 ** rng.uniform(-stops, stops)).clip(0, 255)
    return {**sample, "image": bright.astype(np.uint8)}
@register("storage", "npz")
class Npz(Storage):
    """Images, uint8 [N, H, W, 3], and labels, int [N], in a file of np.savez; decode=raw."""
    def __init__(self, path: str) -> None:
        self.images, labels = (np.load(path)[name] for name in ("images", "labels"))
        keys, names = (list(map(str, range(n))) for n in (len(labels), labels.max() + 1))
        self.index, self.labels = Table(keys, {"label": labels}, names), labels.tolist()
    def read(self, indices: np.ndarray) -> list[Record | BadRecord]:  # noqa: D102
        return [Record(i, str(i), {"image": self.images[i], "label": self.labels[i]})
                for i in indices.tolist()]

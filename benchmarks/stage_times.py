"""Cost of timing the stages, as a share of processor time, on pipelines that do little.

The pipeline decodes images from memory or passes them on, applies a transform that does nothing,
and stacks batches of 512. It runs in this process, so no cost hides behind other work. Runs with
and without the clocks and the loader's stats alternate.

    python benchmarks/stage_times.py [--rounds 21]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import simplejpeg  # noqa: E402

from penstock.core.contracts import Storage  # noqa: E402
from penstock.core.rng import KeyedRng, Stream  # noqa: E402
from penstock.core.sample import Record  # noqa: E402
from penstock.datasets.map_dataset import MapDataset  # noqa: E402
from penstock.datasets.records.table import Table  # noqa: E402
from penstock.pipeline.collates.fields import stack  # noqa: E402
from penstock.pipeline.loader.loader import Loader  # noqa: E402
from penstock.pipeline.loader.settings import LoaderSettings  # noqa: E402
from penstock.pipeline.loader.stats import LoaderStats  # noqa: E402
from penstock.transforms.decode.image import ImageDecoder  # noqa: E402
from penstock.transforms.decode.raw import RawDecoder  # noqa: E402

SAMPLES, BATCH = 8_192, 512


class Memory(Storage):
    """Small images by number."""

    def __init__(self, images: Any) -> None:
        self._images = images
        self.index = Table([str(n) for n in range(SAMPLES)], {}, ())

    def read(self, indices: Any) -> list[Record]:  # type: ignore[override]
        """Records of views."""
        return [Record(n, "", {"image": self._images[n]}) for n in indices.tolist()]

    def fingerprint(self) -> str:
        """Nothing changes."""
        return "memory"


class NoStats(LoaderStats):
    """Keeps nothing."""

    def begin(self) -> None:
        """Nothing."""

    def count_in(self, delivery: Any) -> None:
        """Nothing."""

    def asked(self) -> None:
        """Nothing."""


def nothing(sample: Any, rng: Any) -> Any:
    """The sample as it is."""
    return sample


class Untimed(MapDataset):
    """Looks at no clock."""

    def finish(
        self, records: Any, positions: Any, epoch: int, *, rows: Any = None, times: Any = None
    ) -> list[Any]:
        """Decode and transform."""
        stage, keyed, samples = self._transform, KeyedRng(), []
        for row, (record, position) in enumerate(zip(records, positions.tolist(), strict=True)):
            sample: Any = {**self._decode(record), "position": position}
            rng = keyed.at(stage.seed, epoch, position, Stream.AUGMENT)
            into = None if rows is None else rows[row]
            samples.append(stage._transformed(sample, rng, None, into))
        return samples


def seconds(kind: type[MapDataset], decode: Any, transform: Any, records: Any) -> float:
    """Processor time of some epochs."""
    dataset = kind(Memory(records), decode=decode, transform=transform, seed=0)
    settings = LoaderSettings(engine="inline", num_workers=0, batch_size=BATCH)
    loader = Loader(dataset, sampler=None, collate=stack, settings=settings, seed=0)
    if kind is Untimed:
        loader.stats = NoStats()
    start = time.thread_time()
    for _ in loader:
        pass
    return time.thread_time() - start


def compare(name: str, rounds: int, *parts: Any) -> None:
    """Alternate with and without, and print the medians."""
    kinds = [MapDataset, Untimed]
    seconds(MapDataset, *parts)
    ratios, each = [], []
    for number in range(rounds):
        order = kinds if number % 2 == 0 else kinds[::-1]
        found = {kind: seconds(kind, *parts) for kind in order}
        ratios.append(found[MapDataset] / found[Untimed])
        each.append(found[Untimed] / SAMPLES * 1e6)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    took = statistics.median(each)
    print(f"{name:<34}{took:>7.1f} us a sample  with / without {middle:.4f} "
          f"({low:.4f} to {high:.4f})")  # fmt: skip


def main() -> None:
    """Compare on data that is decoded, and on data that is only passed on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    pixels = np.random.default_rng(0).integers(0, 255, (SAMPLES, 32, 32, 3), np.uint8)
    smooth = np.repeat(np.repeat(pixels[:64, ::8, ::8], 16, 1), 16, 2)
    jpeg = [simplejpeg.encode_jpeg(image, quality=90) for image in smooth]
    files = [jpeg[n % len(jpeg)] for n in range(SAMPLES)]
    compare("JPEG of 64 x 64, decoded", rounds, ImageDecoder(), nothing, files)
    compare("arrays of 32 x 32, passed on", rounds, RawDecoder(), nothing, pixels)


if __name__ == "__main__":
    main()

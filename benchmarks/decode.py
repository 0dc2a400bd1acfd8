"""Decoding what the first crop needs, beside decoding whole images: photographs per second.

Four ways run alternately in this process, each with two threads and with all files in the page
cache, and each through the real config but the first:

  floor   pure decoding of whole images (simplejpeg), nothing else
  whole   dataset.decode.region=whole: decode, then crop, resize and flip
  exact   dataset.decode.region=exact, the default, on the files as they are
  tiled   the same on tiled JPEG in LMDB, packed from these files (quality 95)
  tiled_whole  the tiled files decoded whole

    python benchmarks/decode.py /path/to/photographs [--rounds 7] [--augment imagenet]

Processor time counts where other programs disturb: wall time then says little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.build import build_dataset
from pipeline.commands import pack
from pipeline.config.command_line import configure
from pipeline.config.compose import compose

THREADS = 2
BATCH = 32
PAIRS = [
    ("whole", "floor"),
    ("exact", "floor"),
    ("exact", "whole"),
    ("tiled", "floor"),
    ("tiled", "tiled_whole"),
    ("tiled", "whole"),
]

Work = Callable[[np.ndarray, int], Any]


def main() -> None:
    """Print medians and the ratios of rounds, paired."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--augment", default="imagenet")
    parser.add_argument("--repeat", type=int, default=2, help="passes over the files per round")
    arguments = parser.parse_args()

    import cv2

    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as folder:
        works = _works(arguments.photographs, arguments.augment, Path(folder) / "tiled")
        count = works.pop("count")
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        for work in works.values():
            _rate(work, count, 0, 1)  # builds what each thread needs
        for round_number in range(arguments.rounds):
            names = list(works)
            for name in names if round_number % 2 else names[::-1]:
                rates[name].append(_rate(works[name], count, round_number, arguments.repeat))
    print(f"{count} photographs, {arguments.rounds} rounds, {THREADS} threads; medians, ranges")
    for name, each in rates.items():
        wall, processor = (statistics.median(values) for values in zip(*each, strict=True))
        print(f"{name:<12} {wall:6,.0f} images/s  {1e6 / processor:6,.0f} us of processor time")
    print("ratios of rounds             images/s             per processor second")
    for name, other in PAIRS:
        pairs = list(zip(rates[name], rates[other], strict=True))
        by_kind = [[a[kind] / b[kind] for a, b in pairs] for kind in (0, 1)]
        texts = [f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in by_kind]
        print(f"{name + ' / ' + other:<28} {texts[0]:<20} {texts[1]}")


def _works(photographs: Path, augment: str, tiled: Path) -> dict[str, Any]:
    """What each way does with some indices, and the number of photographs."""
    import simplejpeg

    common = [f"augment={augment}", "dataset.val_fraction=0"]
    files = [*common, f"dataset.storage.path={photographs}", "dataset.storage.labels=null"]
    pack.run(configure([*files, f"pack.path={tiled}", "pack.tiled=true"], command="pack"))
    lmdb = [*common, "dataset=lmdb", f"dataset.storage.path={tiled / 'train'}"]
    storage: Any = build_dataset(compose(files), "train")
    paths = [str(photographs / key) for key in storage.index.keys(np.arange(len(storage)))]

    def floor(indices: np.ndarray, epoch: int) -> None:
        for index in indices.tolist():
            descriptor = os.open(paths[index], os.O_RDONLY)
            data = os.read(descriptor, 1 << 30)
            os.close(descriptor)
            try:
                simplejpeg.decode_jpeg(data)
            except ValueError:
                simplejpeg.decode_jpeg(data, strict=False)

    def fetch(overrides: list[str]) -> Work:
        dataset: Any = build_dataset(compose(overrides), "train")
        return lambda indices, epoch: dataset.fetch(indices, indices, epoch)

    return {
        "count": len(paths),
        "floor": floor,
        "whole": fetch([*files, "dataset.decode.region=whole"]),
        "exact": fetch(files),
        "tiled": fetch(lmdb),
        "tiled_whole": fetch([*lmdb, "dataset.decode.region=whole"]),
    }


def _rate(work: Work, count: int, epoch: int, repeat: int) -> tuple[float, float]:
    """Images per second, and per second of processor time, of threads that share the batches."""
    batches = [
        order[at : at + BATCH]
        for passed in range(repeat)
        for order in [np.random.default_rng([epoch, passed]).permutation(count)]
        for at in range(0, count, BATCH)
    ]
    pending = iter(batches)
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                indices = next(pending, None)
            if indices is None:
                return
            work(indices, epoch)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    start, started = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    images = count * repeat
    return images / (time.perf_counter() - start), images / (time.process_time() - started)


if __name__ == "__main__":
    main()

"""Cost as work grows: samples per second over 10^3 to 10^7 samples, and over worker counts.

    python benchmarks/growth.py [--largest 7] [--workers 1,2] [--rounds 5]

The index is a real one of that length, memory-mapped, over a few generated images. Only costs that
grow with the data set can slow the loader down. The first table uses small samples (a decoded JPEG
of 128 x 128), which makes overhead visible. The second uses photographs of 500 x 375 with the
``imagenet`` stack. ``--workers 1,2,4,8,16`` gives the curve of a larger machine. Efficiency is the
rate of n workers over n times the rate of one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from family import TICK_S, members, processor_s, pss_mb
from harness import alternate, markdown, paired, reply, run_cell, stop_when_terminated, with_spread
from machine import describe

ROOT = Path(__file__).resolve().parents[1]
STORAGE = Path(__file__).with_name("few_images.py")
BATCH = 32
SMALLEST = 3
TIMEOUT_S = 600


def write_images(folder: Path, height: int, width: int, count: int = 16) -> None:
    """Write synthetic photographs: colour at several scales and noise, JPEG of quality 90."""
    import cv2
    import numpy as np

    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.normal(0, 0.15, (height, width, 3)).astype(np.float32)
        for cells in (3, 9, 40):
            coarse = rng.normal(0, 1, (cells, cells, 3)).astype(np.float32)
            pixels += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        image = np.clip(128 + 55 * pixels, 0, 255).astype(np.uint8)
        cv2.imwrite(f"{folder}/{number:02d}.jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])


def measure(overrides: list[str], batches: int) -> dict[str, float]:
    """Measure samples per second over `batches` batches, in as many epochs as needed."""
    sys.path.insert(0, str(ROOT))
    from penstock import build_loader, compose

    with build_loader(compose(overrides), "train") as loader:
        start = time.perf_counter()
        stream = (batch for _ in iter(int, 1) for batch in loader)
        next(stream)
        first_s = time.perf_counter() - start
        for _ in islice(stream, batches // 4):
            pass
        spent_s, start = processor_s(members()), time.perf_counter()
        samples = sum(len(batch["image"]) for batch in islice(stream, batches))
        wall_s = time.perf_counter() - start
        spent_s = max(TICK_S, processor_s(members()) - spent_s)
        memory_mb = pss_mb(members())
        stream.close()
    return {
        "rate": samples / wall_s,
        "processor_us": 1e6 * spent_s / samples,
        "first_s": first_s,
        "memory_mb": memory_mb,
    }


def overrides_of(index: Path, images: Path, workers: int) -> list[str]:
    """Return the loader of a synthetic index."""
    return [
        f"imports=[{STORAGE}]", "dataset/storage=few_images", f"dataset.storage.path={index}",
        f"dataset.storage.images={images}", "dataset.val_fraction=0", "loader=threads",
        f"loader.num_workers={workers}", f"loader.batch_size={BATCH}",
    ]  # fmt: skip


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=7, help="largest power of ten")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, from 1 on")
    parser.add_argument("--sampler", default="random", help="random, sequential or weighted")
    parser.add_argument("--processes", action="store_true", help="a process per worker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=400, help="that are timed")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        reply(measure(**json.loads(arguments.cell)))
        return
    stop_when_terminated()
    print(describe(), "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        sys.path.insert(0, str(ROOT))
        from few_images import write_few_images

        write_images(scratch / "small", 128, 128)
        write_images(scratch / "photographs", 375, 500)
        for power in range(SMALLEST, arguments.largest + 1):
            write_few_images(scratch / f"{power}.arrow", count=10**power)
        print(over_samples(scratch, arguments), "\n")
        print(over_workers(scratch, arguments))


def over_samples(scratch: Path, arguments: argparse.Namespace) -> str:
    """Return the table over the length of the data set."""
    specs = {
        f"{10**power:,}": [
            *overrides_of(scratch / f"{power}.arrow", scratch / "small", 2),
            "augment=none", f"sampler={arguments.sampler}",
        ]
        for power in range(SMALLEST, arguments.largest + 1)
    }  # fmt: skip
    results = run(specs, arguments)
    lines = compared(results, lambda first, other: paired(other, first))
    header = ["samples", "samples/s", "/ the first", "the same, per processor second",
              "processor µs", "first batch, ms", "PSS, MB"]  # fmt: skip
    return markdown(header, lines)


def over_workers(scratch: Path, arguments: argparse.Namespace) -> str:
    """Return the table over the number of workers."""
    counts = [int(text) for text in arguments.workers.split(",")]
    engine = "processes" if arguments.processes else "threads"
    specs = {
        str(count): [
            *overrides_of(scratch / f"{SMALLEST}.arrow", scratch / "photographs", count),
            f"loader.engine={engine}", "augment=imagenet",
        ]
        for count in counts
    }  # fmt: skip
    results = run(specs, arguments)
    lines = compared(results, lambda first, other: paired(other, first))
    for line, count in zip(lines, counts, strict=False):
        rates = [result["rate"] for result in results[str(count)]]
        base = [result["rate"] * count / counts[0] for result in results[str(counts[0])]]
        line.insert(3, with_spread(paired(rates, base)))
    header = ["workers", "images/s", "/ the first", "efficiency", "per processor second",
              "processor µs", "first batch, ms", "PSS, MB"]  # fmt: skip
    return markdown(header, lines)


def run(specs: dict[str, list[str]], arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the results of the rounds by name."""

    def one(name: str) -> Any:
        spec = {"overrides": specs[name], "batches": arguments.batches}
        result = run_cell(__file__, spec, timeout_s=TIMEOUT_S)
        print(f"  {name:<12} {result['rate']:>8,.0f}/s", file=sys.stderr)
        return result

    return {name: each for name, each in alternate([*specs], arguments.rounds, one).items() if each}


def compared(results: dict[str, list[Any]], ratio: Any) -> list[list[str]]:
    """Return a line for each name: medians, and ratios to the first name."""

    def column(name: str, key: str) -> Sequence[float]:
        return [result[key] for result in results[name]]

    first = next(iter(results))
    return [
        [
            name,
            f"{statistics.median(column(name, 'rate')):,.0f}",
            with_spread(ratio(column(first, "rate"), column(name, "rate"))),
            with_spread(paired(column(first, "processor_us"), column(name, "processor_us"))),
            f"{statistics.median(column(name, 'processor_us')):,.0f}",
            f"{1e3 * statistics.median(column(name, 'first_s')):,.0f}",
            f"{statistics.median(column(name, 'memory_mb')):,.0f}",
        ]
        for name in results
    ]


if __name__ == "__main__":
    main()

"""Samples per second of arrays in memory-mapped files, compared with torch's DataLoader.

Loaders shuffle small images (32 x 32), crop them with padding 4, flip them, and collate uint8
batches of 512. Ours runs through the real config (``dataset=memmap augment=small``) with every
engine, as for training on the CPU. Torch's DataLoader works sample by sample, with an increasing
number of workers. The floor is ``np.take`` into one buffer. ``--raw SIDE`` measures larger images
stored as pixels: RandomResizedCrop(224) and a flip. There, the floor is copying and resizing alone.

All loaders run in one tree of processes and take turns. A turn is four epochs in a row. The first
does not count: it warms up caches and workers. The table shows the median, lowest and highest.

    python benchmarks/small.py [--rounds 7] [--count 50000] [--workers 2]
    python benchmarks/small.py --raw 256 [--count 1000]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import numpy as np  # noqa: E402

SIDE, PADDING, CROP = 32, 4, 224
EPOCHS = 3
"""Epochs that are counted in a turn."""
Epoch = Callable[[], int]
"""Goes through one epoch; returns the number of samples."""


class PerSample:
    """A careful map-style dataset over the arrays: no conversions, no Python loops.

    Args:
        folder: The arrays.
        augmented: Crop with padding and flip each sample.
    """

    def __init__(self, folder: Path, *, augmented: bool) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        import torch

        image = np.asarray(self.images[index])
        if not self.augmented:
            return torch.from_numpy(image.copy()), int(self.labels[index])
        side = SIDE + 2 * PADDING
        padded = np.zeros((side, side, 3), np.uint8)
        padded[PADDING:-PADDING, PADDING:-PADDING] = image
        top, left, flips = torch.randint(0, 2 * PADDING + 1, (3,)).tolist()
        crop = padded[top : top + SIDE, left : left + SIDE]
        if flips & 1:
            crop = crop[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(crop)), int(self.labels[index])


class Resized:
    """The same for large images: a random box, resized by OpenCV, and a flip."""

    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        import cv2
        import torch

        cv2.setNumThreads(0)
        row = np.empty((CROP, CROP, 3), np.uint8)
        rng = np.random.default_rng(int(torch.randint(0, 1 << 62, ())))
        resize_into(row, np.asarray(self.images[index]), rng)
        return torch.from_numpy(row), int(self.labels[index])


def resize_into(row: np.ndarray, image: np.ndarray, rng: np.random.Generator) -> None:
    """Resize a random box of 8 to 100 % of an image into `row`, flipped half of the time."""
    import cv2

    side = image.shape[0]
    height, width = (np.sqrt(rng.uniform(0.08, 1, 2)) * side).astype(int).tolist()
    top, left = int(rng.integers(side - height + 1)), int(rng.integers(side - width + 1))
    box = image[top : top + height, left : left + width]
    if rng.integers(2):
        resized = cv2.resize(box, (CROP, CROP), interpolation=cv2.INTER_LINEAR)
        cv2.flip(resized, 1, dst=row)
    else:
        cv2.resize(box, (CROP, CROP), dst=row, interpolation=cv2.INTER_LINEAR)


def torch_loader(dataset: Any, workers: int, batch_size: int) -> Epoch:
    """Return an epoch of torch's DataLoader over a map-style dataset."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: counted(len(labels) for _, labels in loader)


def ours(folder: Path, batch_size: int, *overrides: str) -> Epoch:
    """Return an epoch of our loader, by the config, with the steps of `augment.device`."""
    from penstock import compose
    from penstock.pipeline.build import build_device_transforms, build_loader
    from penstock.pipeline.loader.device.queue import DeviceQueue

    config = compose(
        [
            "dataset=memmap", f"dataset.storage.path={folder}", "dataset.val_fraction=0",
            f"loader.batch_size={batch_size}", "augment.device.normalize=null", *overrides,
        ]
    )  # fmt: skip
    loader = build_loader(config, "train", device="cpu")
    fed = DeviceQueue(loader, "cpu", build_device_transforms(config, "train", "cpu"))
    return lambda: counted(len(batch["label"]) for batch in fed)


def counted(sizes: Iterable[int]) -> int:
    """Goes through batches of these sizes."""
    return sum(sizes)


def batches(count: int, batch_size: int) -> Iterator[np.ndarray]:
    """Shuffled indices of an epoch."""
    order = np.random.default_rng(0).permutation(count)
    return (order[start : start + batch_size] for start in range(0, count, batch_size))


def take_floor(folder: Path, batch_size: int) -> Epoch:
    """Return an epoch of `np.take` into one buffer."""
    images = np.asarray(np.load(folder / "images.npy", mmap_mode="r"))
    buffer = np.empty((batch_size, *images.shape[1:]), np.uint8)

    def epoch() -> int:
        for rows in batches(len(images), batch_size):
            np.take(images, rows, axis=0, out=buffer[: len(rows)], mode="clip")
        return len(images)

    return epoch


def resize_floor(folder: Path, batch_size: int, threads: int) -> Epoch:
    """Return an epoch of copying and resizing: each thread fills its own buffer with a batch."""
    images = np.asarray(np.load(folder / "images.npy", mmap_mode="r"))
    pool = ThreadPoolExecutor(threads)
    buffers = [np.empty((batch_size, CROP, CROP, 3), np.uint8) for _ in range(threads)]

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for rows in list(batches(len(images), batch_size))[number::threads]:
            for row, index in zip(buffers[number], rows.tolist(), strict=False):
                resize_into(row, images[index], rng)

    def epoch() -> int:
        list(pool.map(work, range(threads)))
        return len(images)

    return epoch


def write_arrays(folder: Path, count: int, side: int) -> None:
    """Write noise, and labels."""
    rng = np.random.default_rng(0)
    shape = (count, side, side, 3)
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    for start in range(0, count, 1000):
        part = images[start : start + 1000]
        part[...] = rng.integers(0, 256, part.shape, np.uint8)
    images.flush()
    np.save(folder / "labels.npy", rng.integers(0, 10, count))


def engines(workers: int) -> dict[str, list[str]]:
    """Return overrides by the name of an engine."""
    threads = ["loader=threads", f"loader.num_workers={workers}"]
    return {
        "inline": ["loader=inline"],
        "1 thread": ["loader=threads", "loader.num_workers=1"],
        f"{workers} threads": threads,
        f"{workers} threads in 1 process": [
            "loader=processes",
            f"loader.num_workers={workers}",
        ],
        f"torch engine, {workers} workers": ["loader=torch", f"loader.num_workers={workers}"],
    }


def small_ways(folder: Path, batch_size: int, workers: int) -> dict[str, Epoch]:
    """Return the measured loaders for small images, by name."""
    ways = {"np.take into one buffer": take_floor(folder, batch_size)}
    for name in ("inline", "1 thread"):
        plain = ["augment=small", "augment.device.crop=null", "augment.device.flip=null"]
        ways[f"ours, {name}"] = ours(folder, batch_size, *plain, *engines(workers)[name])
    for count in range(workers + 1):
        dataset = PerSample(folder, augmented=False)
        ways[f"torch, {count} workers"] = torch_loader(dataset, count, batch_size)
    for name, overrides in engines(workers).items():
        ways[f"ours, crop and flip, {name}"] = ours(folder, batch_size, "augment=small", *overrides)
    for count in range(workers + 1):
        dataset = PerSample(folder, augmented=True)
        ways[f"torch, crop and flip, {count} workers"] = torch_loader(dataset, count, batch_size)
    return ways


def raw_ways(folder: Path, batch_size: int, workers: int) -> dict[str, Epoch]:
    """Return the measured loaders for large images, by name."""
    ways = {"copying and resizing alone": resize_floor(folder, batch_size, workers)}
    for name, overrides in engines(workers).items():
        ways[f"ours, {name}"] = ours(folder, batch_size, "augment=imagenet", *overrides)
    ways[f"torch, {workers} workers"] = torch_loader(Resized(folder), workers, batch_size)
    return ways


def measured(ways: dict[str, Epoch], rounds: int) -> dict[str, list[float]]:
    """Measure the samples per second of every loader, by turns."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, epoch in ways.items():
            gc.collect()
            epoch()
            # A loader that works ahead has as many batches ready now as at the end of the timing.
            start = time.perf_counter()
            count = sum(epoch() for _ in range(EPOCHS))
            rates[name].append(count / (time.perf_counter() - start))
    return rates


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--raw", type=int, metavar="SIDE")
    options = parser.parse_args()

    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    side, batch_size = options.raw or SIDE, 128 if options.raw else 512
    count = options.count or (1000 if options.raw else 50_000)
    with tempfile.TemporaryDirectory() as name:
        write_arrays(Path(name), count, side)
        make = raw_ways if options.raw else small_ways
        ways = make(Path(name), batch_size, options.workers)
        rates = measured(ways, options.rounds)
        ways.clear()
        gc.collect()
    cores = len(os.sched_getaffinity(0))
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {cores} cores, torch {torch.__version__}")
    print(
        f"{count:,} images of {side} x {side}, batches of {batch_size}, {options.rounds} rounds\n"
    )
    floor = statistics.median(next(iter(rates.values())))
    best = {
        kind: max((statistics.median(r) for n, r in rates.items() if _kind(n) == kind), default=0)
        for kind in ("torch", "torch, crop and flip")
    }
    print(f"| {'what':<46} | samples/s | lowest to highest | of the floor | x best torch alike |")
    print(f"|{'-' * 48}|{'-' * 10}:|{'-' * 18}:|{'-' * 13}:|{'-' * 19}:|")
    for name, values in rates.items():
        rate = statistics.median(values)
        span = f"{min(values):,.0f} to {max(values):,.0f}"
        alike = best["torch, crop and flip" if "crop and flip" in name else "torch"]
        print(f"| {name:<46} | {rate:>9,.0f} | {span:>17} | {rate / floor:>12.2f} | "
              f"{rate / alike:>18.1f} |")  # fmt: skip


def _kind(name: str) -> str:
    return "torch, crop and flip" if name.startswith("torch, crop") else name.split(",")[0]


if __name__ == "__main__":
    main()

"""Images per second of the loader's engines, beside torch's DataLoader as people write it.

Photographs to ``RandomResizedCrop(224)``, a horizontal flip and uint8 batches, shuffled, with
two workers each. Every engine runs through the real config (``dataset=image_folder
augment=imagenet``); runs alternate, so that what else the machine does meets all of them, and
each is a process of its own, whose first epoch warms up and is not counted.

    python benchmarks/loaders.py <folder of photographs> [--rounds 5] [--epochs 2] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCH = 64
SIZE = 224
SUFFIXES = {".jpg", ".jpeg"}

ENGINES: dict[str, dict[str, Any]] = {
    "ring, threads": {"engine": "ring", "processes": 0},
    "ring, 1 process": {"engine": "ring", "processes": 1},
    "ring, a process per worker": {"engine": "ring", "processes": "workers"},
    "torch engine": {"engine": "torch"},
}


def ours(name: str, folder: Path, workers: int) -> Any:
    """A loader of an engine, through the config."""
    sys.path.insert(0, str(ROOT))
    from pipeline import compose
    from pipeline.build import build_loader

    changes = {"num_workers": workers, **ENGINES[name]}
    if changes.get("processes") == "workers":
        changes["processes"] = workers
    config = compose(
        [
            "dataset=image_folder", f"dataset.storage.path={folder}",
            "dataset.storage.labels=null", "dataset.val_fraction=0", "augment=imagenet",
            f"augment.image_size={SIZE}", f"loader.batch_size={BATCH}",
            *(f"loader.{key}={value}" for key, value in changes.items()),
        ]
    )  # fmt: skip
    return build_loader(config, "train")


class _Photographs:
    """A map-style dataset as in a hundred tutorials."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)

    def __len__(self) -> int:
        return len(self.files)


class WithPillow(_Photographs):
    """PIL alone: decode, crop and resize, flip."""

    def __getitem__(self, index: int) -> Any:
        import random

        import numpy as np
        from PIL import Image

        image = Image.open(self.files[index]).convert("RGB")
        left, top, width, height = _draw_crop(*image.size)
        box = (left, top, left + width, top + height)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        array = np.asarray(image)
        return array[:, ::-1].copy() if random.random() < 0.5 else array.copy()


class WithAlbumentations(_Photographs):
    """OpenCV decodes and albumentations augments."""

    transform: Any = None

    def __getitem__(self, index: int) -> Any:
        import albumentations as A
        import cv2

        if self.transform is None:
            cv2.setNumThreads(0)
            crop = A.RandomResizedCrop((SIZE, SIZE), scale=(0.08, 1.0), ratio=(0.75, 1.3333))
            self.transform = A.Compose([crop, A.HorizontalFlip(p=0.5)])
        image = cv2.cvtColor(cv2.imread(str(self.files[index])), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"]


def _draw_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box: left, top, width, height."""
    import math
    import random

    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(0.75), math.log(1.3333)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


PLAIN: dict[str, Callable[[Path], Any]] = {
    "DataLoader, cv2 and albumentations": WithAlbumentations,
    "DataLoader, PIL": WithPillow,
}


def plain(name: str, folder: Path, workers: int) -> Any:
    """The DataLoader of torch over one of the datasets above."""
    from torch.utils.data import DataLoader

    return DataLoader(
        PLAIN[name](folder), batch_size=BATCH, shuffle=True, num_workers=workers, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip


def measure(name: str, folder: Path, workers: int, epochs: int) -> dict[str, float]:
    """One run in this process: images per second, seconds to the first batch, megabytes."""
    loader = (ours if name in ENGINES else plain)(name, folder, workers)
    start = time.perf_counter()
    first_s, images, counted_s = None, 0, 0.0
    for epoch in range(epochs + 1):
        began = time.perf_counter()
        for batch in loader:
            first_s = first_s or time.perf_counter() - start
            size = len(batch["image"] if isinstance(batch, dict) else batch)
            images += size * (epoch > 0)
        counted_s += (time.perf_counter() - began) * (epoch > 0)
    return {"rate": images / counted_s, "first_s": first_s or 0.0, "memory_mb": _memory_mb()}


def _memory_mb() -> float:
    """Proportional memory of this process and all below it."""
    import psutil

    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / 1e6


def runs(names: list[str], arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    """All rounds, the ways alternating, each run in a process of its own."""
    for _ in range(arguments.rounds):
        for name in names:
            command = [
                sys.executable, __file__, str(arguments.folder), "--one", name,
                "--epochs", str(arguments.epochs), "--workers", str(arguments.workers),
            ]  # fmt: skip
            environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr}")
            yield name, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run all ways in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="photographs, in any depth of folders")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        given = (arguments.one, arguments.folder, arguments.workers, arguments.epochs)
        print(json.dumps(measure(*given)))
        return
    names = [*ENGINES, *PLAIN]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name, result in runs(names, arguments):
        results[name].append(result)
        print(f"  {name}: {result['rate']:.0f}", file=sys.stderr)
    print(
        f"python {platform.python_version()}, {os.cpu_count()} cores, {arguments.workers} workers"
    )
    print(f"{'':36}{'images/s':>10}{'ratio':>7}{'spread':>14}{'first batch':>13}{'MB':>6}")
    base = statistics.median(r["rate"] for r in results["torch engine"])
    for name in names:
        rates = [result["rate"] for result in results[name]]
        rate = statistics.median(rates)
        first_s = statistics.median(result["first_s"] for result in results[name])
        memory = statistics.median(result["memory_mb"] for result in results[name])
        spread = f"{min(rates):.0f}-{max(rates):.0f}"
        print(
            f"{name:36}{rate:>10.0f}{rate / base:>7.2f}{spread:>14}{first_s:>11.2f} s{memory:>6.0f}"
        )


if __name__ == "__main__":
    main()

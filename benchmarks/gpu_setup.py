"""Shared parts of the benchmark of a GPU: scales, data, loaders, training steps, a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prepared_images import PreparedImages, make_images
from torch import nn

from penstock.pipeline.collates.fields import stack
from penstock.pipeline.loader.device.accelerator import Accelerator
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.loader import Loader
from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.samplers.random import RandomSampler


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    workers: int = 16
    images: int = 8192
    side: int = 256
    crop: int = 224
    batch_size: int = 256
    files: int = 4096
    links: int = 4
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    seconds: float = 4.0
    rounds: int = 24
    cycles: int = 50_000_000


TINY = Scale(
    workers=2, images=96, side=24, crop=16, batch_size=8, files=24, links=1, blocks=(1, 1, 1, 1),
    width=4, seconds=0.3, rounds=3, cycles=0,
)  # fmt: skip


class HostStream:
    """A stream that does everything at once."""

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        """It has happened."""


class HostEvent:
    """A mark of the host's clock."""

    at_s = 0.0

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, later: HostEvent) -> float:
        """Milliseconds."""
        return (later.at_s - self.at_s) * 1000


class HostAccelerator(Accelerator):
    """The CPU in place of a GPU, so that ``--cpu`` goes the same way."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def stream(self) -> Any:
        """Make a stream."""
        return HostStream()

    current_stream = stream

    def event(self) -> Any:
        """Make an event."""
        return HostEvent()

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Allocate ordinary memory."""
        return self.empty(size_bytes)

    def register(self, address: int, size_bytes: int) -> bool:
        """Do nothing."""
        return True

    def unregister(self, address: int) -> None:
        """Do nothing."""


@dataclass
class Bench:
    """Data and scales of all sections.

    Attributes:
        scale: How large everything is.
        device: The GPU, or the CPU of a trial run.
        folder: Where data is made.
        out: Where results go.
    """

    scale: Scale
    device: torch.device
    folder: Path
    out: Path

    @property
    def is_trial(self) -> bool:
        """Whether there is no GPU."""
        return self.device.type == "cpu"

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        if not self.is_trial:
            torch.accelerator.synchronize(self.device)

    def sleep(self, cycles: int) -> None:
        """Keep the device busy, without the host."""
        if not self.is_trial and cycles:
            torch.cuda._sleep(cycles)

    def queue(self, loader: Any, transforms: Sequence[Any] = ()) -> DeviceQueue:
        """Feed the device."""
        stand_in = HostAccelerator() if self.is_trial else None
        return DeviceQueue(loader, self.device, transforms, accelerator=stand_in)

    @cached_property
    def arrays(self) -> Path:
        """Images as one array of noise."""
        return make_images(self.folder / "images.npy", self.scale.images, self.scale.side)

    @contextmanager
    def prepared(self, crop: int | None = None, **changes: Any) -> Iterator[Loader]:
        """A loader over the array; by threads, unless `changes` say otherwise."""
        dataset = PreparedImages(self.arrays, crop or self.scale.crop)
        given = {"engine": "threads", "batch_size": self.scale.batch_size,
                 "num_workers": min(8, self.scale.workers)}  # fmt: skip
        settings = LoaderSettings(**{**given, **changes})
        sampler = RandomSampler(len(dataset), seed=0)
        with Loader(dataset, sampler=sampler, collate=stack, settings=settings, seed=0) as loader:
            yield loader

    @cached_property
    def files(self) -> Path:
        """JPEG files in folders of ten classes."""
        folder, scale = self.folder / "files", self.scale
        numbers = np.array_split(np.arange(scale.files), scale.workers * 4)
        with ProcessPoolExecutor(scale.workers) as pool:
            list(pool.map(write_files, numbers, [folder] * len(numbers)))
        for path in sorted(folder.rglob("*.jpg")):
            for link in range(1, scale.links):
                os.link(path, path.with_name(f"{link}-{path.name}"))
        return folder

    @cached_property
    def tiled(self) -> Path:
        """The same as tiled JPEG."""
        run_program(
            "pack", "dataset=image_folder", f"dataset.storage.path={self.files}",
            f"pack.path={self.folder / 'tiled'}", "pack.tiled=true", "dataset.val_fraction=0",
            f"pack.num_workers={self.scale.workers}",
        )  # fmt: skip
        return self.folder / "tiled" / "train"

    def overrides(self, data: str, *more: str) -> list[str]:
        """The usual recipe on files or tiled files."""
        path = getattr(self, data)
        return [
            f"dataset={'image_folder' if data == 'files' else 'lmdb'}",
            f"dataset.storage.path={path}", "dataset.val_fraction=0", "augment=imagenet",
            f"augment.image_size={self.scale.crop}", "loader=processes",
            f"loader.num_workers={self.scale.workers}",
            f"loader.batch_size={self.scale.batch_size}", *more,
        ]  # fmt: skip

    @contextmanager
    def configured(self, data: str, *more: str) -> Iterator[Loader]:
        """A loader of the usual recipe."""
        from penstock import build_loader, compose

        config = compose(self.overrides(data, *more))
        with build_loader(config, "train", device=self.device) as loader:
            yield loader


def write_files(numbers: Any, folder: Path) -> None:
    """Write images of 500 x 375 pixels with about as much detail as photographs."""
    import cv2

    cv2.setNumThreads(0)
    for number in numbers.tolist():
        rng = np.random.default_rng(number)
        image = np.zeros((375, 500, 3), np.float32)
        for side, weight in ((4, 60), (16, 40), (64, 25), (190, 22), (375, 9)):
            noise = rng.normal(0, weight, (side, side * 4 // 3, 3)).astype(np.float32)
            image += cv2.resize(noise, (500, 375), interpolation=cv2.INTER_CUBIC)
        target = folder / str(number % 10)
        target.mkdir(parents=True, exist_ok=True)
        pixels = np.clip(image + 128, 0, 255).astype(np.uint8)
        cv2.imwrite(f"{target}/{number:06d}.jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])


def run_program(*arguments: str) -> None:
    """Run penstock in a process of its own."""
    done = subprocess.run(command_of(*arguments), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])


def command_of(name: str, *arguments: str) -> list[str]:
    """A command of penstock, whether it is installed or not."""
    code = "from penstock.pipeline.program import main; raise SystemExit(main())"
    return [sys.executable, "-c", code, name, *arguments]


def forever(batches: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    return chain.from_iterable(iter(lambda: batches, None))


def light() -> nn.Module:
    """A network of the cost of AlexNet without its large layers."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 192, 5, 1, 2),
        nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(192 * 36, 1000),
    )  # fmt: skip


class Training:
    """Steps of a network on the device; nothing of them is read."""

    def __init__(self, bench: Bench, model: nn.Module, amp: torch.dtype = torch.bfloat16) -> None:
        self.bench, self.amp = bench, amp
        model = model.to(device=bench.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.model = model
        fp16 = amp is torch.float16
        self.scaler = torch.amp.GradScaler(bench.device.type, enabled=fp16)
        self.loss = torch.zeros((), device=bench.device)

    def step(self, batch: Any) -> None:
        """One step."""
        with torch.autocast(self.bench.device.type, dtype=self.amp):
            outputs = self.model(batch["image"])
            self.loss = nn.functional.cross_entropy(outputs, batch["label"])
        self.scaler.scale(self.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def rate(self, queue: Any) -> tuple[float, float, float]:
        """Images per second, the share of the time that steps wait, cores of this process."""
        batches = forever(queue)
        self._steps(batches, 4)
        seconds, _ = self._steps(batches, 4)
        waited, cpu = getattr(queue, "wait_s", 0.0), time.process_time()
        seconds, images = self._steps(batches, max(4, int(4 * self.bench.scale.seconds / seconds)))
        waited = getattr(queue, "wait_s", 0.0) - waited
        return images / seconds, waited / seconds, (time.process_time() - cpu) / seconds

    def _steps(self, batches: Iterator[Any], count: int) -> tuple[float, int]:
        """Make steps, and return the seconds until the device is done, and the images."""
        start, images = time.perf_counter(), 0
        for batch in islice(batches, count):
            self.step(batch)
            images += len(batch["label"])
        self.bench.wait()
        return time.perf_counter() - start, images

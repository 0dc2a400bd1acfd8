"""What reaches a GPU: transfer, overlap with computing, waiting of a training step, workers.

1. Copies of uint8 batches as the loader delivers them, beside the bandwidth of page-locked memory.
2. A profiler trace of training steps, and the share of the copying that lies under computing.
3. Steps of the size of ResNet-50 (channels last, bfloat16) on prepared data: the share of time
   that they wait for it.
4. Batches on the device per second with 1 to 16 workers.

The data are uint8 images in a memory-mapped file, made here, cropped at random and flipped.

    python benchmarks/gpu.py [--out outputs/gpu] [--workers 8] [--batch-size 128]

``--cpu`` runs all of it, very small, without a GPU: that proves that it runs, and nothing more.
It has not been run on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from overlap import overlap_share  # noqa: E402
from prepared_images import PreparedImages, make_images  # noqa: E402
from resnet import resnet  # noqa: E402

from penstock.pipeline.collates.stack import stack  # noqa: E402
from penstock.pipeline.device import (  # noqa: E402
    Copy,
    DevicePrefetcher,
    map_tensors,
)
from penstock.pipeline.loader.loader import Loader  # noqa: E402
from penstock.pipeline.loader.settings import LoaderSettings  # noqa: E402
from penstock.pipeline.samplers.random import RandomSampler  # noqa: E402
from penstock.transforms.device.normalize import Normalize  # noqa: E402

AIM_TRANSFER, AIM_WAIT = 0.9, 0.02


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is; an epoch has `batches` batches."""

    batches: int = 80
    side: int = 256
    crop: int = 224
    batch_size: int = 128
    workers: int = 8
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    steps: int = 60
    warm_up: int = 10
    curve: tuple[int, ...] = (1, 2, 4, 8, 16)


TINY = Scale(20, 24, 16, 4, 2, (1, 1, 1, 1), 4, 4, 1, (1, 2))


class _HostMark:
    """A mark of the host's clock."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: _HostMark) -> float:
        return (later.at_s - self.at_s) * 1000


class HostStream:
    """Copies from memory to memory, so that ``--cpu`` takes the way that a GPU does."""

    def copy(self, host: Any) -> Copy:
        """Copy at once."""
        begun = _HostMark()
        return Copy(host, map_tensors(host, torch.clone), begun, _HostMark())

    def deliver(self, copy: Copy) -> Any:
        """It is there."""
        return copy.batch


@contextmanager
def batches_of(
    data: Path,
    scale: Scale,
    device: torch.device,
    *,
    transforms: Sequence[Any] = (),
    **changes: Any,
) -> Iterator[DevicePrefetcher]:
    """The loader's batches on the device."""
    dataset = PreparedImages(data, scale.crop)
    given = {"engine": "threads", "batch_size": scale.batch_size, "num_workers": scale.workers}
    settings = LoaderSettings(**{**given, **changes})
    sampler = RandomSampler(len(dataset), seed=0)
    with Loader(dataset, sampler=sampler, collate=stack, settings=settings, seed=0) as loader:
        stream = HostStream() if device.type == "cpu" else None
        yield DevicePrefetcher(loader, device, transforms, stream=stream)


def wait_for(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, size_bytes: int, repeats: int = 30) -> float:
    """Bytes per second from page-locked memory of torch's own to the device."""
    host = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty_like(host, device=device)
    rates = []
    for _ in range(5):
        wait_for(device)
        start = time.perf_counter()
        for _ in range(repeats):
            target.copy_(host, non_blocking=True)
        wait_for(device)
        rates.append(repeats * size_bytes / (time.perf_counter() - start))
    return sorted(rates)[2]


def transfer(data: Path, scale: Scale, device: torch.device) -> Iterator[tuple[str, float, float]]:
    """What copies: name, bytes per second, share of the bandwidth."""
    size_bytes = scale.batch_size * scale.crop**2 * 3
    best = bandwidth(device, size_bytes)
    yield "page-locked memory", best, 1.0
    for name, processes in (("threads", 0), ("2 processes", 2)):
        with batches_of(data, scale, device, processes=processes) as batches:
            iterator = iter(batches)
            for _ in islice(iterator, scale.warm_up):  # the first batches pin their memory
                pass
            begun_s, count = batches.copy_s, sum(1 for _ in iterator)
        rate = count * size_bytes / max(batches.copy_s - begun_s, 1e-9)
        yield f"the loader, {name}", rate, rate / best


class Training:
    """Steps of a residual network on a device."""

    def __init__(self, scale: Scale, device: torch.device) -> None:
        self.device = device
        self.model = resnet(scale.blocks, width=scale.width).to(
            device=device, memory_format=torch.channels_last
        )  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self._losses: deque[torch.Tensor] = deque()

    def step(self, batch: Any) -> None:
        """One step; the loss of the one before the last is looked at, as a log would."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.detach())
        if len(self._losses) > 2:
            self._losses.popleft().item()


def waiting(data: Path, scale: Scale, device: torch.device) -> dict[str, float]:
    """Training on prepared data: share of the time that steps wait, and images per second."""
    training = Training(scale, device)
    with batches_of(data, scale, device, transforms=[Normalize()]) as batches:
        iterator = iter(batches)
        for batch in islice(iterator, scale.warm_up):
            training.step(batch)
        wait_for(device)
        start, waited_s, copied_s = time.perf_counter(), batches.wait_s, batches.copy_s
        for batch in islice(iterator, scale.steps):
            training.step(batch)
        wait_for(device)
        seconds = time.perf_counter() - start
        iterator.close()  # type: ignore[attr-defined]
    return {
        "images_per_s": scale.steps * scale.batch_size / seconds,
        "wait_share": (batches.wait_s - waited_s) / seconds,
        "copy_share": (batches.copy_s - copied_s) / seconds,
    }


def trace(data: Path, scale: Scale, device: torch.device, path: Path) -> float | None:
    """Write a trace of training steps; the share of copying under computing, None without any."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    training = Training(scale, device)
    with batches_of(data, scale, device, transforms=[Normalize()]) as batches:
        iterator = iter(batches)
        for batch in islice(iterator, scale.warm_up):
            training.step(batch)
        with profile(activities=activities) as profiler:
            for batch in islice(iterator, 10):
                training.step(batch)
            wait_for(device)
        iterator.close()  # type: ignore[attr-defined]
    profiler.export_chrome_trace(str(path))
    return overlap_share(json.loads(path.read_text())["traceEvents"])


def curve(data: Path, scale: Scale, device: torch.device) -> Iterator[tuple[str, int, float]]:
    """Images per second that arrive on the device: threads or processes, by workers."""
    most = os.cpu_count() or 1
    for workers in scale.curve:
        if workers > most and device.type == "cuda":
            return
        for name in ("threads", "processes"):
            with batches_of(data, scale, device, engine=name, num_workers=workers) as batches:
                iterator = iter(batches)
                next(iterator)
                start, count = time.perf_counter(), sum(len(b["label"]) for b in iterator)
                wait_for(device)
                yield name, workers, count / (time.perf_counter() - start)


def main() -> int:
    """Measure everything in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu")
    parser.add_argument("--workers", type=int, default=Scale.workers)
    parser.add_argument("--batch-size", type=int, default=Scale.batch_size)
    parser.add_argument("--cpu", action="store_true", help="very small, without a GPU")
    arguments = parser.parse_args()
    if not arguments.cpu and not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device; --cpu tries it without", file=sys.stderr)
        return 2
    device = torch.device("cpu" if arguments.cpu else "cuda")
    scale = replace(Scale(), workers=arguments.workers, batch_size=arguments.batch_size)
    if arguments.cpu:
        torch.set_num_threads(1)
        scale = TINY
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        data = make_images(
            Path(folder) / "images.npy", scale.batches * scale.batch_size, scale.side
        )
        results = measure(data, scale, device, arguments.out / "trace.json")
    (arguments.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {arguments.out / 'results.json'}, {arguments.out / 'trace.json'}")
    return 0


def measure(data: Path, scale: Scale, device: torch.device, trace_path: Path) -> dict[str, Any]:
    """All measurements in turn, printed as they come."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: a trial run"
    print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, batch {scale.batch_size}")
    results: dict[str, Any] = {"device": name, "transfer": {}, "curve": []}
    for way, rate, share in transfer(data, scale, device):
        results["transfer"][way] = {"bytes_per_s": rate, "share": share}
        print(f"copies from {way}: {rate / 1e9:.2f} GB/s, {share:.0%} (aim {AIM_TRANSFER:.0%})")
    results["overlap"] = trace(data, scale, device, trace_path)
    shown = "no copies" if results["overlap"] is None else f"{results['overlap']:.0%}"
    print(f"copying that lies under computing: {shown}")
    results["training"] = waiting(data, scale, device)
    training = results["training"]
    print(
        f"training: {training['images_per_s']:.0f} images/s, waits {training['wait_share']:.1%} "
        f"of the time (aim: under {AIM_WAIT:.0%}), copies {training['copy_share']:.1%}"
    )
    for way, workers, rate in curve(data, scale, device):
        results["curve"].append({"way": way, "workers": workers, "images_per_s": rate})
        print(f"{workers:2d} workers, {way}: {rate:.0f} images/s on the device")
    return results


if __name__ == "__main__":
    sys.exit(main())

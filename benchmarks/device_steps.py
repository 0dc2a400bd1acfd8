"""Device steps beside Kornia's on a GPU: images per second, and peak memory.

    python benchmarks/device_steps.py [--batch-size 256] [--side 256]

Our steps get bytes [B, H, W, 3]. Kornia gets floats [B, 3, H, W], so it converts nothing. Our
time includes draws on the host and their copies. The two take turns, and the median round counts.
Peak memory is in units of each library's own batch. ``--cpu`` runs a tiny version without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kornia import augmentation

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

from penstock.transforms.device.color_jitter import ColorJitter  # noqa: E402
from penstock.transforms.device.geometry import (  # noqa: E402
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
)
from penstock.transforms.device.steps import DeviceStep, apply_steps, host_draws  # noqa: E402

TRAIN: dict[str, Any] = {"seed": 0, "split": "train", "step": "step"}
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}


def pairs(side: int) -> dict[str, tuple[DeviceStep, torch.nn.Module]]:
    """Return our step and Kornia's by name; crops keep the size of the images."""
    return {
        "resized crop": (
            RandomResizedCrop(size=side, **TRAIN),
            augmentation.RandomResizedCrop((side, side), align_corners=False),
        ),
        "flip": (RandomFlip(**TRAIN), augmentation.RandomHorizontalFlip()),
        **{
            f"color jitter, hue {hue}": (
                ColorJitter(**COLOURS, hue=hue, **TRAIN),
                augmentation.ColorJitter(**COLOURS, hue=hue),
            )
            for hue in (0.0, 0.1)
        },
        "erasing": (RandomErasing(p=0.5, **TRAIN), augmentation.RandomErasing(p=0.5)),
    }


class Ours:
    """Draws for a new epoch each time and applies a step to a batch on the device."""

    def __init__(self, step: DeviceStep, image: torch.Tensor) -> None:
        self.step, self.image, self.epoch, self.draw_s = step, image, 0, 0.0

    def __call__(self) -> torch.Tensor:
        """Return the changed images."""
        start, self.epoch = time.perf_counter(), self.epoch + 1
        position = torch.arange(len(self.image))
        rows = {"position": position, "epoch": torch.full_like(position, self.epoch)}
        [draws] = host_draws([self.step], {"image": self.image, **rows})
        self.draw_s = time.perf_counter() - start
        to: dict[str, Any] = {"device": self.image.device, "non_blocking": True}
        there = {name: torch.from_numpy(draw).to(**to) for name, draw in draws.items()}
        result: torch.Tensor = apply_steps([self.step], {"image": self.image}, [there])["image"]
        return result


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the time of a call, with the device idle before and after all calls."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - start) / repeats


def peak(call: Callable[[], Any], size_bytes: int) -> float:
    """Return the peak memory of a call in units of its batch."""
    if not torch.cuda.is_available():
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / size_bytes + 1


def main() -> None:
    """Measure all steps and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--batch-size", "--side"):
        parser.add_argument(name, type=int, default=256)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    device, count, side, rounds, repeats = "cuda", given.batch_size, given.side, 5, 20
    if given.cpu:
        device, count, side, rounds, repeats = "cpu", 8, 32, 2, 1
    image = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, device=device)
    floats = image.permute(0, 3, 1, 2).float().div_(255).contiguous()
    print("| step | ours, images/s | kornia | ratio | draws, ms | ours, peak | kornia |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, (step, module) in pairs(side).items():
        sides = (Ours(step, image), lambda module=module: module(floats))
        for call in sides:
            seconds(call, 3)
        times = [[seconds(c, repeats) for c in sides] for _ in range(rounds)]
        ours, kornia = (count / median(side) for side in zip(*times, strict=True))
        peaks = [peak(c, b.nbytes) for c, b in zip(sides, (image, floats), strict=True)]
        rest = f"{sides[0].draw_s * 1000:.2f} | {peaks[0]:.1f} | {peaks[1]:.1f}"
        print(f"| {name} | {ours:,.0f} | {kornia:,.0f} | {ours / kornia:.2f} | {rest} |")


if __name__ == "__main__":
    main()

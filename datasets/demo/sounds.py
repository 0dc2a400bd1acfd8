"""Generate the demo set of sounds: tones that rise, fall or tremble, ``train/rise/0000.wav``."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.demo.folder import DemoSet, random

CLASSES = ("fall", "rise", "steady", "tremble")
COUNTS = {"train": 480, "val": 120}
RATE = 16_000
_SEED = 20_261_125


def generate_sounds(root: Path) -> None:
    """Write the sounds of every split into the folder `root`."""
    for split_id, (split, count) in enumerate(COUNTS.items()):
        for number in range(count):
            folder = root / split / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            samples = np.rint(draw_sound(split_id, number) * 32_767).astype("<i2")
            with wave.open(str(folder / f"{number:04d}.wav"), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                file.writeframes(samples.tobytes())


def draw_sound(split_id: int, number: int) -> NDArray[np.float64]:
    """Draw one sound, which depends only on the arguments; float64 [T], -1 to 1."""
    rng = random(_SEED, split_id, number)
    time_s = np.arange(int(RATE * rng.uniform(0.6, 1.6))) / RATE
    pitch, speed = np.exp(rng.uniform(np.log(300), np.log(1500))), rng.uniform(0.8, 2.0)
    octaves = {
        "fall": -speed * time_s,
        "rise": speed * time_s,
        "steady": 0 * time_s,
        "tremble": 0.15 * np.sin(2 * np.pi * 4 * speed * time_s),
    }[CLASSES[number % len(CLASSES)]]
    phase = 2 * np.pi * np.cumsum(pitch * 2**octaves) / RATE
    tone = np.sin(phase) + 0.3 * np.sin(2 * phase)
    sound = 0.3 * tone + rng.normal(0, rng.uniform(0.01, 0.1), len(time_s))
    return np.clip(sound * rng.uniform(0.2, 1.0), -1, 1)


SOUNDS = DemoSet("demo_sounds", ("image_folder",), generate_sounds)

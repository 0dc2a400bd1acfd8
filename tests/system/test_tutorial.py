"""docs/tutorial.md, typed from its first line to its last, on a few pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.pipeline import commands
from penstock.pipeline.config.app import main
from tests.system.test_pages import FILE, fenced, read, typed

PAGE = "docs/tutorial.md"
SHORT = {
    "train": ["trainer.num_threads=1", "trainer.progress=off", "loader.num_workers=2"],
    "bench": ["bench.seconds=0.05", "bench.rounds=1", "bench.try_seconds=0"],
    "bench storages": ["bench.storages=[lmdb,zip]"],
    "doctor": ["doctor.batches=2", "loader.batch_size=4"],
}


def draw(folder: Path) -> None:
    """Draw a few pictures in a folder of each class."""
    rng = np.random.default_rng(0)
    for name, color in (("cat", (60, 80, 200)), ("dog", (200, 80, 60))):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.normal(color, 25, (80, 96, 3)).clip(0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / name / f"{number:02d}.jpg"), pixels)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works_as_it_is_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "photos")
    for name, text in FILE.findall(read(PAGE)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    before = set(sys.modules)
    shown = set()
    for line in fenced(PAGE):
        for program, arguments in typed(line):
            given = [*arguments, *SHORT.get(program, ())]
            given += SHORT.get(" ".join([program, *arguments[:1]]), ())
            if program == "pack" and "experiment=photos" not in given:  # who has no pictures
                given = [*given, "path=drawn", "dataset.storage.path=photos"]
            runs = sorted(tmp_path.glob("outputs/*/*"))
            given = [
                f"checkpoint={runs[-1]}" if text.startswith("checkpoint=") else text
                for text in given
            ]
            if line.startswith("torchrun"):
                ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
                ranks += ["--nproc-per-node=2"]
                place = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
                done = subprocess.run(
                    [*ranks, "--no-python", "penstock", "train", *given],
                    env={**os.environ, "PATH": place}, capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
            elif program == "train":
                assert main(given) == 0, line
            else:
                assert commands.main([program, *given]) == 0, line
            shown.add(program)
    assert shown == {"train", *commands.COMMANDS}
    for name in ("preview.png", "hidden.png", "packed/train", "predictions.csv", "cats.csv"):
        assert Path(name).exists()
    for name in {*sys.modules} - before:
        if name == "parts":
            del sys.modules[name]

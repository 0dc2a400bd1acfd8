"""A run that is killed again and again ends as the run that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [
    "trainer.resume=auto",
    "trainer.validate_every=20",
    "trainer.limit_val_batches=2",
    "trainer.checkpoint_every=5",
    "trainer.log_every=5",
    "trainer.num_threads=1",
    "loader.batch_size=16",
    "loader.num_workers=1",
    "sampler=weighted",
    "augment=strong",
    "augment.image_size=48",
    "augment.eval_size=56",
]


def _start(folder: Path, data_dir: Path, max_steps: int) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    given = [*SETTINGS, f"trainer.max_steps={max_steps}", f"data_dir={data_dir}"]
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *given],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def _run_killed(folder: Path, data_dir: Path, kills: int, *, max_steps: int) -> int:
    """Run to the end, killed up to `kills` times on the way; how often it was."""
    draw = random.Random(kills)
    done = 0
    while True:
        process = _start(folder, data_dir, max_steps)
        if done < kills:
            before = _checkpoint_time(folder)
            deadline = time.monotonic() + 120
            # Wait for a sign of progress, so that every life gets somewhere; then a random while.
            while (
                process.poll() is None
                and _checkpoint_time(folder) == before
                and time.monotonic() < deadline
            ):
                time.sleep(0.01)
            time.sleep(draw.random() * 0.5)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                done += 1
        output, _ = process.communicate(timeout=600)
        # One that is killed after it has written its results has ended all the same.
        if process.returncode == 0 or list(folder.glob("outputs/*/*/summary.json")):
            return done
        assert process.returncode == -signal.SIGKILL, output


def _checkpoint_time(folder: Path) -> float:
    times = [file.stat().st_mtime for file in folder.glob("outputs/*/*/checkpoints/last*")]
    return max(times, default=0.0)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("outputs/*/*/checkpoints/last.pt")
    return torch.load(file, weights_only=True)["model"]


def _metrics(folder: Path) -> str:
    (file,) = folder.glob("outputs/*/*/metrics.csv")
    return file.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "max_steps"), [(2, 80), (20, 1500)])
@pytest.mark.timeout(1800)
def test_killed_runs_end_bit_identical(kills, max_steps, tmp_path, data_dir):
    _run_killed(tmp_path / "straight", data_dir, 0, max_steps=max_steps)
    assert _run_killed(tmp_path / "killed", data_dir, kills, max_steps=max_steps) == kills
    expected, got = _weights(tmp_path / "straight"), _weights(tmp_path / "killed")
    assert expected.keys() == got.keys()
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    assert _metrics(tmp_path / "straight") == _metrics(tmp_path / "killed")

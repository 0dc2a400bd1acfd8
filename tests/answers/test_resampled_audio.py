"""The first lines of a run report the sample rates of files that are resampled."""

from pathlib import Path

import numpy as np
import pytest

from penstock import compose
from penstock.pipeline.training.job import train

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")


@pytest.mark.parametrize(("rate", "count"), [(22_050, 1), (16_000, 0)])
def test_a_run_reports_resampled_audio_once(tmp_path, rate, count):
    for number in range(8):
        folder = tmp_path / "sounds" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        samples = np.random.default_rng(number).normal(0, 0.1, rate).astype(np.float32)
        soundfile.write(folder / f"{number}.wav", samples, rate)
    config = compose(
        ["task=audio", f"dataset.storage.path={tmp_path}/sounds", f"outputs={tmp_path}/outputs",
         "loader=inline", "loader.batch_size=2", "trainer.max_steps=1", "trainer.device=cpu"]
    )  # fmt: skip
    log = (Path(train(config)["run_dir"]) / "log.txt").read_text().splitlines()
    found = [line for line in log if line.split()[4:5] == ["audio"]]
    assert len(found) == count and all("22,050" in line and "16,000" in line for line in found)

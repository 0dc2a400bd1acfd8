"""Where the time of a run went: in its timings, in TensorBoard and in its summary."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from penstock import compose
from penstock.pipeline.training.job import train

STAGES = ("read", "decode", "transform", "collate")
LAPS = {f"time/{name}_us" for name in (*STAGES, "copy")} | {
    "time/samples_per_s", "time/data_wait", "time/cache_hits", "time/bad_samples",
}  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, data_dir) -> Path:
    outputs = tmp_path_factory.mktemp("outputs")
    overrides = [
        f"data_dir={data_dir}", f"outputs={outputs}", "logger=[csv,tensorboard]", "loader=inline",
        "loader.batch_size=16", "trainer.max_steps=6", "trainer.log_every=2",
        "trainer.limit_val_batches=2", "trainer.progress=off", "dataset/cache=ram",
        "dataset.cache.max_bytes=8MB",
    ]  # fmt: skip
    return Path(train(compose(overrides))["run_dir"])


def timings(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "timings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_interval_has_its_stages(run_dir):
    rows = [row for row in timings(run_dir) if row["time/samples_per_s"]]
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    for row in rows:
        assert float(row["time/decode_us"]) > 0
        assert 0 <= float(row["time/data_wait"]) <= 1
        assert all(row[name] for name in LAPS)


def test_a_validation_has_its_own(run_dir):
    [row] = [row for row in timings(run_dir) if row["time/val_samples_per_s"]]
    assert row["step"] == "6"
    assert float(row["time/val_decode_us"]) > 0


def test_metrics_stay_free_of_times(run_dir):
    assert "time" not in (run_dir / "metrics.csv").read_text()


def test_tensorboard_shows_what_the_timings_hold(run_dir):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = event_accumulator.EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= LAPS
    rows = [row for row in timings(run_dir) if row["time/decode_us"]]
    for name in LAPS:
        shown = {str(event.step): event.value for event in events.Scalars(name)}
        assert shown == {row["step"]: pytest.approx(float(row[name]), rel=1e-5) for row in rows}


def test_the_summary_tells_where_the_time_went(run_dir):
    times = json.loads((run_dir / "summary.json").read_text())["times"]
    for split in ("train", "val"):
        assert times[split]["seconds"] > 0
        assert all(times[split][f"{stage}_us"] >= 0 for stage in STAGES)
        assert times[split]["decode_us"] > 0
        assert 0 <= times[split]["cache_hits"] <= 1
    log = (run_dir / "log.txt").read_text()
    assert "waiting for data" in log and "decode" in log
    assert "of the records" in log

"""Training in processes of its own: several ranks, signals, and a reader that leaves."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from penstock.pipeline.training import job
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import (
    SLOW_2,
    assert_equal_weights,
    assert_near,
    checkpoint,
    start,
    the_folder,
    weights,
)

pytestmark = pytest.mark.usefixtures("tiny_parts")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [SLOW_2, 3])
def test_ranks_equal_the_single_process(tmp_path, ranks):
    # Rank 0 of the last batch (45 = 5 x 8 + 5) has 1 or 2 rows; batch 1 has its bad ones all on
    # one rank, which still takes part.
    options = {"dropout": 0.0, "bad_positions": [8, 9, 10, 11, 17], "samples": 41}
    trainer = {"accumulate": 2, "max_epochs": 2}
    single = job.train(config_of(tmp_path / "one", trainer, **options))
    process = start(config_of(tmp_path / "many", trainer, **options), ranks=ranks)
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    folder = the_folder(tmp_path / "many")
    assert_near(weights(Path(single["run_dir"])), weights(folder))
    results = json.loads((folder / "summary.json").read_text())
    assert results["val/accuracy"] == single["val/accuracy"]
    assert results["bad_samples"] == single["bad_samples"] == 10
    assert results["val/loss"] == pytest.approx(single["val/loss"], rel=1e-5)
    high = "" if ranks == 2 else " to 3"
    assert output.count(f"batch 8 = {ranks} ranks x {8 // ranks}{high}\n") == 1


CALLBACKS = {
    "ema": {"_target_": "callback/ema", "decay": 0.9},
    "early_stopping": {"_target_": "callback/early_stopping", "patience": 1, "min_delta": 5.0},
}


def test_ranks_average_alike_end_early_together_and_do_not_hang_when_one_fails(tmp_path):
    alone, shared = (
        config_of(tmp_path / name, {"max_epochs": 9}, dropout=0.0) | {"callback": CALLBACKS}
        for name in ("alone", "shared")
    )
    process = start([shared, config_of(tmp_path / "failed", fails={"1": 2})], ranks=2)
    run = Path(job.train(alone)["run_dir"])
    _, errors = process.communicate(timeout=250)
    other = the_folder(tmp_path / "shared")
    assert json.loads((other / "summary.json").read_text())["epoch"] == 2
    assert_near(weights(run), weights(other))
    assert process.returncode != 0
    assert errors.count("rank 1 stopped: made-up trouble on rank 1") == 1, errors
    assert 'tiny_job.py", line' not in errors  # no traceback but torchrun's own


@pytest.mark.slow
def test_an_error_of_all_ranks_is_told_once(tmp_path):
    process = start(config_of(tmp_path, {"resume": "nowhere"}), ranks=2)
    _, errors = process.communicate(timeout=250)
    assert process.returncode != 0
    assert errors.count("nowhere does not exist") == 1, errors


@pytest.mark.parametrize("ranks", [1, SLOW_2])
def test_ctrl_c_saves_and_exits_with_130(tmp_path, ranks):
    trainer = {"resume": "auto", "checkpoint_every": None, "max_epochs": 9}
    quick, slow = (config_of(tmp_path, trainer, sleep_s=s) for s in (0.0, 0.1))
    process = start(slow, ranks=ranks, start_new_session=True)
    while not list(tmp_path.glob("*/*/metrics.csv")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if ranks == 1:
        process.send_signal(signal.SIGINT)
    else:  # as a terminal does: to everyone, torchrun included
        os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=250)
    assert "stopping after this step" in errors and 'tiny_job.py", line' not in errors
    if ranks == 1:
        assert process.returncode == 130
    folder = the_folder(tmp_path)
    assert f"go on with trainer.resume={folder}" in output
    assert 0 < checkpoint(folder)["state"]["step"] < 54
    if ranks == 1:
        slow["tiny"]["sleep_s"] = quick["tiny"]["sleep_s"]
        expected = job.train(config_of(tmp_path / "straight", trainer))["run_dir"]
        go_on = config_of(tmp_path, {**trainer, "resume": str(folder)})
        assert_equal_weights(weights(Path(job.train(go_on)["run_dir"])), weights(Path(expected)))


@pytest.mark.slow
def test_a_second_ctrl_c_exits_at_once(tmp_path):
    process = start(config_of(tmp_path, {"log_every": 1}, sleep_s=1.0))
    while not list(tmp_path.glob("*/*/metrics.csv")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    while "once more to stop at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 130
    assert "stopped at once" in errors


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_training(tmp_path):
    process = start(config_of(tmp_path, sleep_s=0.02))
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 0, errors
    assert errors == ""
    assert (the_folder(tmp_path) / "summary.json").exists()

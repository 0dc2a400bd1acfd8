from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from tiny_job import FAKES, ROOT, config_of

from pipeline.training import job
from pipeline.training.checkpoint import read_checkpoint

SCRIPT = str(Path(__file__).with_name("tiny_job.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    threads = torch.get_num_threads()
    for name, fake in FAKES.items():
        monkeypatch.setattr(job, name, fake)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def start(config, *, ranks=1, **options):
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*launcher, SCRIPT, json.dumps(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **options,
    )


def the_folder(outputs: Path) -> Path:
    (folder,) = outputs.glob("*/*")
    return folder


def checkpoint(folder: Path, name: str = "last.pt"):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def weights(folder: Path):
    return checkpoint(folder)["model"]


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_near(one, other):
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def rows(folder: Path):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_what_it_should(tmp_path, capsys):
    results = job.train(config_of(tmp_path))
    folder = Path(results["run_dir"])
    assert folder == the_folder(tmp_path)
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "log.txt", "metrics.csv", "timings.csv", "checkpoints", "summary.json",
    }  # fmt: skip
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {
        "last.pt", "previous.pt", "best.pt",
    }  # fmt: skip
    assert yaml.safe_load((folder / "config.yaml").read_text())["tiny"]["samples"] == 45
    summary = json.loads((folder / "summary.json").read_text())
    times = summary.pop("times")
    assert summary == results
    for split in ("train", "val"):
        assert times[split]["data_wait"] + times[split]["compute"] == pytest.approx(1)
    assert results["val/accuracy"] > 0.6 and results["step"] == 18
    table = rows(folder)
    assert [row["step"] for row in table] == ["3", "6", "6", "9", "12", "12", "15", "18", "18"]
    assert [bool(row["val/accuracy"]) for row in table] == [False, False, True] * 3
    assert not [name for name in table[0] if "time" in name or "samples" in name]
    printed = capsys.readouterr().out
    for part in ("batch 8", "parameters", "samples/s", "waiting for data", "bad samples", "3 clas"):
        assert part in printed
    assert str(folder) in printed


def test_two_runs_give_the_same_bytes(tmp_path):
    folders = [Path(job.train(config_of(tmp_path))["run_dir"]) for _ in range(2)]
    assert folders[0] != folders[1]
    assert (folders[0] / "metrics.csv").read_bytes() == (folders[1] / "metrics.csv").read_bytes()
    assert_equal_weights(weights(folders[0]), weights(folders[1]))


@pytest.mark.parametrize(
    "trainer",
    [{}, {"accumulate": 2, "clip_norm": 0.5}, {"amp": "bf16"}, {"scheduler_interval": "epoch"}],
    ids=lambda trainer: ",".join(trainer),
)
def test_stopped_after_every_step_it_goes_on_exactly(tmp_path, trainer, monkeypatch):
    trainer |= {"max_epochs": 2, "resume": "auto"}
    straight = Path(job.train(config_of(tmp_path / "straight", trainer))["run_dir"])
    config = config_of(tmp_path / "stopped", trainer)

    class Stops(job.Interrupt):
        def __enter__(self):
            self.requested = True
            return self

    codes = []
    with monkeypatch.context() as patch:
        patch.setattr(job, "Interrupt", Stops)
        while not list((tmp_path / "stopped").glob("*/*/summary.json")):
            try:
                job.train(config)
                break
            except SystemExit as stop:
                codes.append(stop.code)
            if len(codes) >= (6 if "accumulate" in trainer else 12):
                break
    assert set(codes) == {130} and len(codes) > 4
    job.train(config)
    folder = the_folder(tmp_path / "stopped")
    assert_equal_weights(weights(straight), weights(folder))
    assert (straight / "metrics.csv").read_bytes() == (folder / "metrics.csv").read_bytes()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_runs_end_bit_identical(tmp_path, kills):
    trainer = {"resume": "auto", "max_epochs": 2 + kills, "checkpoint_every": 1}
    outputs = tmp_path / "straight"
    straight = Path(job.train(config_of(outputs, trainer, lr=0.01))["run_dir"])
    config = config_of(tmp_path / "killed", trainer, sleep_s=0.02, lr=0.01)
    draw = random.Random(kills)
    done = 0
    while done < kills:
        process = start(config)
        saved = set()
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            saved |= {f.stat().st_mtime_ns for f in (tmp_path / "killed").glob("*/*/*/last.pt")}
            if len(saved) > 1 + (done > 0):
                time.sleep(draw.random() * 0.03)
                break
            time.sleep(0.002)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done += 1
    process = start(config)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert done == kills
    newest = the_folder(tmp_path / "killed")
    assert_equal_weights(weights(straight), weights(newest))
    assert (straight / "metrics.csv").read_bytes() == (newest / "metrics.csv").read_bytes()


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    straight = Path(job.train(config_of(tmp_path / "a"))["run_dir"])
    run = Path(job.train(config_of(tmp_path / "b", {"max_steps": 10}))["run_dir"])
    wanted = config_of(tmp_path / "b", {"resume": str(run)})
    with (run / "metrics.csv").open("a") as file:
        file.write("11,1,0.5,,\n12,1,0.")  # what a killed process left behind
    job.train(wanted)
    # The schedule of the two runs differs; steps and epochs are what is compared here.
    got = [(row["step"], row["epoch"]) for row in rows(run)]
    assert len(got) == len(set(got)) + len([g for g in got if got.count(g) > 1]) // 2
    assert got[-1] == (rows(straight)[-1]["step"], "2")
    assert "11" not in {step for step, _ in got}


def test_a_checkpoint_cut_short_is_recognised_and_the_one_before_used(tmp_path, capsys):
    straight = Path(job.train(config_of(tmp_path / "a"))["run_dir"])
    run = Path(job.train(config_of(tmp_path / "b"))["run_dir"])
    last = run / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    capsys.readouterr()
    job.train(config_of(tmp_path / "b", {"resume": str(run)}))
    printed = capsys.readouterr().out
    assert "last.pt is cut short or damaged" in printed and "previous.pt, the one before" in printed
    assert_equal_weights(weights(straight), weights(run))
    assert (straight / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()


def test_no_whole_checkpoint_is_one_clear_line(tmp_path):
    run = Path(job.train(config_of(tmp_path))["run_dir"])
    for name in ("last.pt", "previous.pt"):
        (run / "checkpoints" / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"^checkpoint .*; no whole checkpoint is left: [^\n]*$"):
        job.train(config_of(tmp_path, {"resume": str(run)}))
    with pytest.raises(ValueError, match="nowhere does not exist; give a run's folder"):
        job.train(config_of(tmp_path, {"resume": "nowhere"}))


def test_auto_takes_the_newest_equal_run_and_leaves_finished_ones(tmp_path, capsys):
    config = config_of(tmp_path, {"resume": "auto"})
    first = job.train(config)["run_dir"]
    assert "no run of this config" in capsys.readouterr().out
    second = job.train(config)["run_dir"]
    assert "is finished; starting a new one" in capsys.readouterr().out
    assert first != second
    (Path(second) / "summary.json").unlink()
    config["loader"]["num_workers"] = 7
    assert job.train(config)["run_dir"] == second
    assert "going on with" in capsys.readouterr().out
    (Path(second) / "summary.json").unlink()
    config["loader"]["batch_size"] = 4
    assert job.train(config)["run_dir"] not in (first, second)


def test_a_checkpoint_file_goes_on_in_its_run_or_in_a_new_one(tmp_path):
    run = Path(job.train(config_of(tmp_path, {"max_epochs": 1}))["run_dir"])
    inside = str(run / "checkpoints" / "last.pt")
    results = job.train(config_of(tmp_path, {"resume": inside}))
    assert results["run_dir"] == str(run) and results["epoch"] == 3
    shutil.copy(inside, tmp_path / "moved.pt")
    moved = config_of(tmp_path, {"resume": str(tmp_path / "moved.pt"), "max_epochs": 4})
    results = job.train(moved)
    assert results["run_dir"] != str(run) and results["epoch"] == 4 and results["step"] == 24


def test_accumulating_equals_the_big_batch(tmp_path):
    # 45 samples: the last big batch has 13 rows, so the last two small ones are of unequal size.
    big = config_of(tmp_path, {"max_epochs": 2}, dropout=0.0, bad_positions=[1, 2, 3, 9])
    small = json.loads(json.dumps(big))
    big["loader"]["batch_size"] = 16
    small["trainer"]["accumulate"] = 2
    one, other = (Path(job.train(config)["run_dir"]) for config in (big, small))
    assert_near(weights(one), weights(other))
    assert [r["step"] for r in rows(one)] == [r["step"] for r in rows(other)]


SLOW_2 = pytest.param(2, marks=pytest.mark.slow)


@pytest.mark.parametrize("ranks", [SLOW_2, 3])
def test_ranks_equal_the_single_process(tmp_path, ranks):
    # Rank 0 of the last batch (45 = 5 x 8 + 5) has 1 or 2 rows; batch 1 has its bad ones all on
    # one rank, which still takes part.
    options = {"dropout": 0.0, "bad_positions": [8, 9, 10, 11, 17], "samples": 41}
    trainer = {"accumulate": 2, "max_epochs": 2}
    single = job.train(config_of(tmp_path / "one", trainer, **options))
    process = start(config_of(tmp_path / "many", trainer, **options), ranks=ranks)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    folder = the_folder(tmp_path / "many")
    assert_near(weights(Path(single["run_dir"])), weights(folder))
    results = json.loads((folder / "summary.json").read_text())
    assert results["val/accuracy"] == single["val/accuracy"]
    assert results["bad_samples"] == single["bad_samples"] == 10
    assert results["val/loss"] == pytest.approx(single["val/loss"], rel=1e-5)
    high = "" if ranks == 2 else " to 3"
    assert output.count(f"batch 8 = {ranks} ranks x {8 // ranks}{high}\n") == 1


def test_a_rank_that_fails_does_not_hang_the_others(tmp_path):
    process = start(config_of(tmp_path, fails={"1": 2}), ranks=2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.count("rank 1 stopped: made-up trouble on rank 1") == 1, errors
    assert 'tiny_job.py", line' not in errors  # no traceback but torchrun's own


@pytest.mark.slow
def test_an_error_of_all_ranks_is_told_once(tmp_path):
    process = start(config_of(tmp_path, {"resume": "nowhere"}), ranks=2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.count("nowhere does not exist") == 1, errors


@pytest.mark.parametrize("ranks", [1, SLOW_2])
def test_ctrl_c_saves_and_exits_with_130(tmp_path, ranks):
    trainer = {"resume": "auto", "checkpoint_every": None, "max_epochs": 2}
    quick, slow = (config_of(tmp_path, trainer, sleep_s=s) for s in (0.0, 0.1))
    process = start(slow, ranks=ranks, start_new_session=True)
    while not list(tmp_path.glob("*/*/metrics.csv")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if ranks == 1:
        process.send_signal(signal.SIGINT)
    else:  # as a terminal does: to everyone, torchrun included
        os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert "stopping after this step" in errors and 'tiny_job.py", line' not in errors
    if ranks == 1:
        assert process.returncode == 130
    folder = the_folder(tmp_path)
    assert f"go on with trainer.resume={folder}" in output
    assert 0 < checkpoint(folder)["state"]["step"] < 12
    if ranks == 1:
        slow["tiny"]["sleep_s"] = quick["tiny"]["sleep_s"]
        expected = job.train(config_of(tmp_path / "straight", trainer))["run_dir"]
        go_on = config_of(tmp_path, {**trainer, "resume": str(folder)})
        assert_equal_weights(weights(Path(job.train(go_on)["run_dir"])), weights(Path(expected)))


def test_a_second_ctrl_c_exits_at_once(tmp_path):
    process = start(config_of(tmp_path, {"log_every": 1}, sleep_s=1.0))
    while not list(tmp_path.glob("*/*/metrics.csv")):
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    began = time.monotonic()
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130 and time.monotonic() - began < 0.5
    assert "stopped at once" in errors


def test_a_reader_that_leaves_does_not_end_training(tmp_path):
    process = start(config_of(tmp_path, sleep_s=0.02))
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 0, errors
    assert errors == ""
    assert (the_folder(tmp_path) / "summary.json").exists()


def test_a_loss_that_is_not_finite_stops_or_skips(tmp_path):
    wild = {"max_epochs": 2, "clip_norm": None, "checkpoint_every": 1}
    with pytest.raises(ValueError, match=r"^the loss is (nan|inf) at or before step \d+ .*skip$"):
        job.train(config_of(tmp_path, wild, lr=1e25, momentum=0.0))
    state = checkpoint(the_folder(tmp_path))
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_overfitting_uses_the_same_batches(tmp_path):
    trainer = {"overfit_batches": 2, "max_epochs": 30, "log_every": 1}
    results = job.train(config_of(tmp_path, trainer, dropout=0.0))
    assert results["step"] == 60 and results["val/accuracy"] == 1.0


def test_limits_of_batches(tmp_path):
    trainer = {"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 2}
    results = job.train(config_of(tmp_path, trainer))
    assert results["step"] == 4
    assert round(results["val/accuracy"] * 8) == pytest.approx(results["val/accuracy"] * 8)


def test_no_batches_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"no batches: .*loader.batch_size \(8\); lower it"):
        job.train(config_of(tmp_path, samples=5, drop_last=True))


def test_a_step_whose_loss_is_not_finite_can_be_skipped(tmp_path, monkeypatch):
    from tiny_job import TinyLoader

    row = TinyLoader.row

    def poisoned(self, position):
        image, label = row(self, position)
        return (image * float("nan") if position == 9 and self.training else image), label

    monkeypatch.setattr(TinyLoader, "row", poisoned)
    results = job.train(config_of(tmp_path, {"on_nonfinite": "skip"}))
    assert results["step"] == 18 and results["val/accuracy"] > 0.5
    with pytest.raises(ValueError, match="the loss is nan at or before step 2 "):
        job.train(config_of(tmp_path))


def test_a_flipped_bit_in_a_checkpoint_is_seen(tmp_path):
    run = Path(job.train(config_of(tmp_path, {"max_epochs": 1}))["run_dir"])
    path = run / "checkpoints" / "best.pt"
    content = bytearray(path.read_bytes())
    needle = weights(run)["head.weight"].numpy().tobytes()
    content[content.index(needle) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: checksum of"):
        read_checkpoint(path)


def test_fp16_scales_its_losses_and_resumes(tmp_path):
    trainer = {"amp": "fp16", "max_epochs": 2}
    straight = Path(job.train(config_of(tmp_path / "a", trainer))["run_dir"])
    run = Path(job.train(config_of(tmp_path / "b", {**trainer, "max_epochs": 1}))["run_dir"])
    assert checkpoint(run)["scaler"]["scale"] > 1
    # Another number of epochs is another schedule; what counts is that it goes on and ends.
    assert job.train(config_of(tmp_path, {**trainer, "resume": str(run)}))["step"] == 12
    assert checkpoint(straight)["state"]["step"] == 12

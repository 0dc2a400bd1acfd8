"""Runs that were stopped, killed or damaged go on exactly, and the files that they go on from."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from penstock.pipeline.config.components import register_components
from penstock.pipeline.training import job, parts
from penstock.pipeline.training.checkpoint import read_checkpoint
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import (
    assert_equal_weights,
    checkpoint,
    rows,
    start,
    the_folder,
    weights,
)

pytestmark = pytest.mark.usefixtures("tiny_parts")

KILLS = [(20, "ddp"), (10, "fsdp")]


@pytest.mark.parametrize(
    "trainer",
    [
        {},
        {"accumulate": 2, "clip_norm": 0.5},
        {"amp": "bf16"},
        {"scheduler_interval": "epoch"},
        {"strategy": "fsdp"},
    ],
    ids=lambda trainer: ",".join(trainer),
)
def test_stopped_after_every_step_it_goes_on_exactly(tmp_path, trainer, monkeypatch):
    trainer |= {"max_epochs": 2, "resume": "auto"}
    straight = Path(job.train(config_of(tmp_path / "straight", trainer))["run_dir"])
    config = config_of(tmp_path / "stopped", trainer)

    class Stops(job.Interrupt):
        def __enter__(self):
            super().__enter__()
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


@pytest.mark.parametrize(
    ("kills", "strategy"),
    [(1, "ddp"), *(pytest.param(kills, way, marks=pytest.mark.slow) for kills, way in KILLS)],
)
def test_killed_runs_end_bit_identical(tmp_path, kills, strategy):
    trainer = {"resume": "auto", "max_epochs": 2 + kills, "checkpoint_every": 1}
    trainer |= {"strategy": strategy}
    outputs = tmp_path / "straight"
    straight = Path(job.train(config_of(outputs, trainer, lr=0.01))["run_dir"])
    # Whoever is killed once is so in the middle, however late it is noticed where that is.
    config = config_of(tmp_path / "killed", trainer, sleep_s=0.1 if kills == 1 else 0.02, lr=0.01)
    draw = random.Random(kills)
    done = 0
    while done < kills:
        process = start(config)
        saved = set()
        deadline = time.monotonic() + 120
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
    _, errors = process.communicate(timeout=250)
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


def test_auto_goes_on_with_no_run_that_has_another_name(tmp_path, capsys):
    def named(name, **trainer):
        config = config_of(tmp_path, {"resume": "auto", **trainer})
        return {**config, "run": {"name": name}}

    first = job.train(named("first", max_epochs=1))["run_dir"]
    before = (Path(first) / "config.yaml").read_bytes()
    capsys.readouterr()
    other = job.train(named("longer", max_epochs=2))["run_dir"]
    assert other != first and (Path(first) / "config.yaml").read_bytes() == before
    assert "no run of this config and the name longer in " in capsys.readouterr().out
    assert job.train(named("first", max_epochs=3))["run_dir"] == first
    assert job.train(named(None, max_epochs=4))["run_dir"] == other, "the newest, of any name"
    assert yaml.safe_load((Path(other) / "config.yaml").read_text())["run"] == {"name": "longer"}


def test_a_restart_of_torchrun_finds_a_run_that_is_done_and_begins_no_other(tmp_path, monkeypatch):
    config = config_of(tmp_path, {"resume": "auto"})
    first = job.train(config)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = job.train(config)
    assert again["run_dir"] == first["run_dir"] and again["step"] == first["step"]
    assert (Path(first["run_dir"]) / "summary.json").exists()


def test_a_checkpoint_file_goes_on_in_its_run_or_in_a_new_one(tmp_path):
    run = Path(job.train(config_of(tmp_path, {"max_epochs": 1}))["run_dir"])
    inside = str(run / "checkpoints" / "last.pt")
    results = job.train(config_of(tmp_path, {"resume": inside}))
    assert results["run_dir"] == str(run) and results["epoch"] == 3
    shutil.copy(inside, tmp_path / "moved.pt")
    moved = config_of(tmp_path, {"resume": str(tmp_path / "moved.pt"), "max_epochs": 4})
    results = job.train(moved)
    assert results["run_dir"] != str(run) and results["epoch"] == 4 and results["step"] == 24


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


def test_auto_goes_on_longer_as_if_it_had_been_asked_from_the_start(tmp_path, monkeypatch, capsys):
    def steady(config, optimizer, total_steps, *, better):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)

    register_components()
    monkeypatch.setattr(parts, "build_scheduler", steady)
    trainer = {"resume": "auto", "validate_every": 2, "monitor": "loss"}
    trainer |= {"scheduler_interval": "epoch", "log_every": 1}
    straight = Path(job.train(config_of(tmp_path / "a", {**trainer, "max_epochs": 6}))["run_dir"])
    short = config_of(tmp_path / "b", {**trainer, "max_epochs": 3})
    run = Path(job.train(short)["run_dir"])
    capsys.readouterr()
    longer = config_of(tmp_path / "b", {**trainer, "max_epochs": 6})
    assert job.train(longer)["run_dir"] == str(run)
    said = capsys.readouterr().out
    assert "which was to be shorter" in said and "schedule" not in said
    assert_equal_weights(weights(straight), weights(run))
    assert checkpoint(straight)["scheduler"] == checkpoint(run)["scheduler"]
    assert job.train(short)["run_dir"] != str(run)  # never with one that was to be longer


def test_a_schedule_that_depends_on_the_length_says_so_when_a_run_goes_on_longer(tmp_path, capsys):
    trainer = {"resume": "auto", "max_epochs": 2}
    config = {**config_of(tmp_path, trainer), "scheduler": {"_target_": "scheduler/cosine"}}
    run = job.train(config)["run_dir"]
    capsys.readouterr()
    config["trainer"]["max_epochs"] = 4
    assert job.train(config)["run_dir"] == run
    assert (
        "depends on the run's length, 12 steps before and 24 now: it goes on where that of 24"
        in (capsys.readouterr().out)
    )
    (Path(run) / "summary.json").unlink()
    assert job.train(config)["run_dir"] == run
    assert "the run is done: it has 4 epochs, 24 steps; to go on" in capsys.readouterr().out


def test_a_resume_that_is_refused_leaves_the_run_as_it_is(tmp_path, monkeypatch):
    run = Path(job.train(config_of(tmp_path, {}))["run_dir"])
    kept = ("summary.json", "classes.json", "config.yaml", "metrics.csv")
    before = {name: (run / name).read_bytes() for name in kept}
    monkeypatch.setattr(job, "task_classes", lambda *_: {"label": ["others"]})

    def refuse(*_):
        raise ValueError("other data")

    with monkeypatch.context() as patch:
        patch.setattr(job.Recorder, "restore", refuse)
        with pytest.raises(ValueError, match="other data"):
            job.train(config_of(tmp_path, {"resume": str(run), "max_epochs": 9}))
    assert {name: (run / name).read_bytes() for name in kept} == before

"""The bench, run for real with tiny budgets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from penstock.core import files
from penstock.pipeline.commands import main
from penstock.pipeline.commands.bench import BenchSettings
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[3]
QUICK = [
    "bench.seconds=0.02", "bench.rounds=1", "bench.records=16", "bench.try_seconds=0",
    "loader.batch_size=16", "model.width=8",
]  # fmt: skip


def bench(data_dir: Path, tmp_path: Path, *overrides: str) -> int:
    given = [*QUICK, f"data_dir={data_dir}", f"outputs={tmp_path}/outputs", *overrides]
    return main(["bench", *given])


def test_it_tells_the_limit_the_floor_and_the_stages(data_dir, tmp_path, capsys):
    assert bench(data_dir, tmp_path, "loader=inline") == 0
    out = capsys.readouterr().out
    for part in ("loader alone", "of the floor", "model alone", "both together", "is the limit",
                 "first batch", "of 16 of 16 images only what", "decode", "MB"):  # fmt: skip
        assert part in out
    assert max(map(len, out.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_it_tries_what_may_help_and_leaves_nothing_behind(data_dir, tmp_path, capsys, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files.own_folder.cache_clear()
    own = files.own_folder()  # which is made when it is needed
    assert bench(data_dir, tmp_path, "loader=inline", "bench.try_seconds=0.02") == 0
    out = capsys.readouterr().out
    assert "settings that would help" in out
    assert "loader=threads loader.num_workers=" in out
    left = [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")]
    assert left == [own] and not list(own.iterdir())
    files.own_folder.cache_clear()


@pytest.mark.parametrize("how", ["lmdb", "tiled", "eager"])
def test_data_in_another_form_is_tried_on_the_same_records(how, data_dir, tmp_path, monkeypatch):
    import tempfile

    from penstock.pipeline.build import build_settings
    from penstock.pipeline.commands.bench.advice import Bench, Candidate
    from penstock.pipeline.commands.bench.points import read_points
    from penstock.pipeline.commands.bench.single import some_records
    from penstock.pipeline.commands.bench.subject import Subject

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    texts = [*QUICK, f"data_dir={data_dir}", "loader=inline", "bench.try_seconds=0.02"]
    points = read_points(texts, command="bench")
    config = points.points[0].config
    with Subject(config, "train") as present:
        rows, _ = some_records(present.loader.dataset.storage, 16)
        settings = build_settings(config["bench"])
        with Bench(points, present, settings, rows=rows, measure=Subject.loader_round) as tries:
            trial = tries.attempt(Candidate("x", how=how))
    assert trial.failed == "" and trial.gain > 0
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left in ([], ["lock"]), "of the folder of this process"


def test_data_in_another_form_is_tried_in_batches_of_the_samplers_sizes(data_dir, monkeypatch):
    from penstock.pipeline.commands.bench import advice
    from penstock.pipeline.commands.bench.single import some_records
    from penstock.pipeline.config.compose import compose

    config = compose([
        *QUICK[4:], f"data_dir={data_dir}", "loader=inline", "sampler=token_budget",
        "sampler.column=size_bytes", "sampler.max_tokens=20000",
    ])  # fmt: skip
    sizes = []

    class Noted(advice.Subject):
        def __init__(self, config, split, *, sampler=None):
            super().__init__(config, split, sampler=sampler)
            plan = self.loader.plan
            bounds = [plan.bounds(n) for n in range(plan.num_batches)]
            sizes.append(sum(stop - first for first, stop in bounds) / len(bounds))

    monkeypatch.setattr(advice, "Subject", Noted)
    settings = BenchSettings(try_seconds=0.02, rounds=1)
    with Noted(config, "train") as present:
        rows, _ = some_records(present.loader.dataset.storage, 64)
        measure = Noted.loader_round
        with advice.Bench(None, present, settings, rows=rows, measure=measure) as tries:
            assert tries.attempt(advice.Candidate("x", how="lmdb")).failed == ""
    whole, before, packed = sizes
    assert 1 < whole < 10 and before == packed == pytest.approx(whole, rel=0.3)


def test_what_cannot_be_tried_says_why(data_dir, tmp_path, capsys):
    from penstock.pipeline.commands.bench.advice import Bench, Candidate
    from penstock.pipeline.commands.bench.points import read_points
    from penstock.pipeline.commands.bench.subject import Subject

    texts = [*QUICK, f"data_dir={data_dir}", "loader=inline"]
    points = read_points(texts, command="bench")
    with Subject(points.points[0].config, "train") as present:
        tries = Bench(points, present, BenchSettings(), rows=None, measure=Subject.loader_round)
        trial = tries.attempt(Candidate("loader.engine=none", ("loader.engine=none",)))
    assert "none" in trial.failed and not trial.ratios


def test_a_sweep_prints_a_table(data_dir, tmp_path, capsys):
    assert bench(data_dir, tmp_path, "loader.num_workers=0,1", "loader=threads") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    heads = next(n for n, line in enumerate(lines) if line.startswith("num_workers"))
    assert [line.split()[0] for line in lines[heads + 1 : heads + 3]] == ["0", "1"]
    assert not (tmp_path / "outputs").exists()


def test_a_point_that_cannot_be_measured_does_not_stop_the_others(data_dir, tmp_path, capsys):
    given = ["loader=inline", "loader.batch_size=16,100000"]
    assert bench(data_dir, tmp_path, *given) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "failed loader.batch_size=100000" in out and "100000 - - - - - -" in out


@pytest.mark.parametrize(
    "overrides",
    [
        ["dataset=eager", "loader=inline"],
        ["dataset=lmdb", "loader=inline", "bench.split=val"],
        ["dataset=torch", "dataset.target=tests.torch_datasets.Squares", "loader=inline"],
        ["dataset=torch", "dataset.target=tests.torch_datasets.SquareStream", "loader=inline",
         "sampler=sequential", "dataset.val_fraction=0"],
    ],
    ids=["eager", "lmdb", "torch", "stream"],
)  # fmt: skip
def test_other_data(overrides, data_dir, tmp_path, capsys):
    assert bench(data_dir, tmp_path, *overrides) == 0, capsys.readouterr()
    assert "is the limit" in capsys.readouterr().out


def test_a_trace_holds_waiting_and_steps(data_dir, tmp_path, capsys):
    path = tmp_path / "traces" / "trace.json"
    assert bench(data_dir, tmp_path, "loader=inline", f"bench.trace={path}") == 0
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"wait for the loader", "next batch", "training step"} <= names


@pytest.mark.slow
def test_ctrl_c_prints_what_is_known_and_leaves_nothing(data_dir, tmp_path):
    command = [PENSTOCK, "bench", f"data_dir={data_dir}",
               "bench.try_seconds=5", "bench.seconds=0.1"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if "is the limit" in line:
            break
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=250)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not list(tmp_path.glob("penstock-bench-*"))

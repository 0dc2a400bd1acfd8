"""The list of runs: names, tags, state and figures, whatever else lies beside them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from penstock.pipeline.commands import main
from penstock.pipeline.training.run_folder import open_run_folder
from tests.pipeline.training.tiny_job import config_of

ROWS = "step,epoch,train/loss,lr,val/loss,val/accuracy\n"


@pytest.fixture
def outputs(tmp_path):
    """Three runs, one that another program has made, one cut short, and a file in between."""

    def made(time, accuracies, *, done=True, trainer=(), **run):
        folder = tmp_path / "2026-01-02" / time
        folder.mkdir(parents=True)
        trainer = {"max_epochs": 3, **dict(trainer)}
        (folder / "config.yaml").write_text(yaml.safe_dump({"trainer": trainer, "run": run}))
        rows = [f"{n},{n},1.0,0.1,{1 - a},{a}\n" for n, a in enumerate(accuracies)]
        (folder / "metrics.csv").write_text(ROWS + "".join(rows) + "9,9,0.5,0.1,,\n" * (not done))
        if done:
            (folder / "summary.json").write_text(json.dumps({"epoch": len(accuracies)}))

    made("10-00-00", [0.25, 0.75, 0.5], name="wide", tags=["old", "demo"])
    made("11-00-00", [0.625], done=False)
    made("12-00-00", [0.5, 0.875], trainer={"monitor": "val_loss"}, name="a name")
    (tmp_path / "2026-01-02" / "13-00-00").mkdir()
    (tmp_path / "2026-01-02" / "sweep-09-00-00.csv").write_text("job\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text(": [\n")
    return tmp_path


def listed(capsys, *typed):
    assert main(["runs", *typed]) == 0
    out = capsys.readouterr().out
    return out, [line.split() for line in out.splitlines() if "2026-01-02/" in line]


def test_runs_are_listed_with_what_came_out(outputs, capsys):
    out, rows = listed(capsys, f"path={outputs}")
    day = f"{outputs}/2026-01-02"
    assert rows == [
        [f"{day}/12-00-00", "a", "name", "done", "2/3", "0.125", "2", "0.125", "loss"],
        [f"{day}/11-00-00", "stopped", "1/3", "0.625", "1", "0.625", "accuracy"],
        [f"{day}/10-00-00", "wide", "old,", "demo", "done", "3/3", "0.75", "2", "0.5", "accuracy"],
    ]
    assert "3 runs below" in out and "2 skipped" in out


def test_they_are_sorted_and_chosen(outputs, capsys):
    def times(*typed):
        return [row[0][-8:] for row in listed(capsys, f"path={outputs}", *typed)[1]]

    assert times("sort=name") == ["12-00-00", "10-00-00", "11-00-00"]
    assert times("tag=demo") == ["10-00-00"]
    assert times("tag=none of these") == []
    assert times("sort=last") == ["11-00-00", "10-00-00", "12-00-00"]


def test_a_run_that_is_trained_says_so(tmp_path, capsys):
    folder = open_run_folder(config_of(tmp_path))
    folder.write_config({"trainer": {"max_epochs": 3}})
    command = f"main(['runs', 'path={tmp_path}'])"  # a lock keeps out other processes alone
    code = f"from penstock.pipeline.commands import main; {command}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "running" in out and "0/3" in out
    folder.release()
    assert main(["runs", f"path={tmp_path}"]) == 0
    assert "stopped" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_a_line(tmp_path, capsys):
    assert main(["runs", f"path={tmp_path / 'none'}"]) == 2
    assert "runs.path: there is no folder" in capsys.readouterr().err

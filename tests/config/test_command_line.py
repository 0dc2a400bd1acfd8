"""The programs as users start them: exit status, output, and what they must not touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from penstock import compose, register
from penstock.core import registry
from penstock.core.user_errors import program_of
from penstock.pipeline.commands import COMMANDS, pack  # noqa: F401 - registers its settings
from penstock.pipeline.config import errors
from penstock.pipeline.config.app import main, run_command
from penstock.pipeline.config.compose import configure
from tests.console import penstock
from tests.heavy_modules import HEAVY
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(ROOT / "train.py")
_WATCHED = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("HEAVY", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python", PENSTOCK, "train")


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((TRAIN, "loader.num_worker=8", "sampler=wheighted", "optimizer.lr=x"), 2),
        ((TRAIN, "sampler=weighted", "dataset=lmdb", "--help"), 0),
        ((TRAIN, "-sc", "query=bash"), 0),
        ((PENSTOCK, "pack", "path=x", "--cfg", "job"), 0),
        ((PENSTOCK,), 2),
    ],
)
def test_it_answers_without_heavy_imports_files_or_a_traceback(tmp_path, words, status):
    done = run("-c", _WATCHED, *words, cwd=tmp_path, COMP_LINE="python train.py sampler=")
    assert done.returncode == status, done.stderr
    assert "HEAVY\n" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_torchrun_reports_a_mistake_once_and_last(tmp_path):
    done = run(*TORCHRUN, "sampler=wheighted", cwd=tmp_path)
    said = "type sampler=weighted"
    assert done.returncode != 0 and done.stderr.count(said) == 1
    [*_, last] = [line for line in done.stderr.splitlines() if line.strip(" =")]
    assert last.rstrip().endswith(said), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_under_torchrun_a_mistake_is_the_cause_in_its_summary(tmp_path, monkeypatch, capsys):
    waited = []
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file := tmp_path / f"{rank}.json"))
        assert main(["sampler=wheighted"]) == 2
        more = json.loads(file.read_text())["message"]["extraInfo"]
        assert "type sampler=weighted" in more["py_callstack"] and int(more["timestamp"]) > 0
    assert len(waited) == 1  # rank 1 waits to be ended once rank 0 has reported
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name)
    assert capsys.readouterr().err == ""
    for rank, times in (("1", 0), ("0", 1)):
        monkeypatch.setenv("RANK", rank)
        assert main(["sampler=wheighted"]) == 2
        assert capsys.readouterr().err.count("type sampler=weighted") == times


def test_the_printed_config_is_the_config(capsys):
    assert main(["--cfg", "job", "seed=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == compose(["seed=3"])
    assert main(["--cfg", "job", "--package", "loader.batch_size"]) == 0
    assert capsys.readouterr().out == "64\n"


@pytest.mark.parametrize(
    ("text", "status"), [("def f():\n    return 1 / 0\nf()\n", 1), ("import datasets; "
     "print('it is', datasets.load_dataset)\n", 0)]
)  # fmt: skip
def test_imports_raise_as_they_are_and_find_another_package_named_datasets(tmp_path, text, status):
    (tmp_path / "parts.py").write_text(text)
    (tmp_path / "site" / "penstock").mkdir(parents=True)
    (tmp_path / "site" / "penstock" / "__init__.py").write_text("raise SystemExit('another')")
    (tmp_path / "site" / "datasets.py").write_text("load_dataset = 'theirs'\n")
    done = run(TRAIN, "imports=[parts.py]", "--cfg", "job", cwd=tmp_path,
               PYTHONPATH=str(tmp_path / "site"))  # fmt: skip
    assert done.returncode == status, done.stderr
    assert ("ZeroDivisionError" in done.stderr) if status else ("it is theirs" in done.stdout)


def test_the_job_gets_the_plain_config(monkeypatch):
    seen = []
    monkeypatch.setattr("penstock.pipeline.training.job.train", seen.append)
    assert main(["seed=4"]) == 0
    assert seen[0]["seed"] == 4 and type(seen[0]["loader"]) is dict


def test_a_failure_in_one_line_is_status_1(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert penstock("train", "dataset.storage.path=.", "loader=inline") == 1
    said = capfd.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_a_command_has_settings_of_its_own(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    @register("settings", "fakecommand")
    @dataclass(frozen=True)
    class Settings:
        split: str = "train"

    for typed in ("fakecommand.split=val", "split=val"):
        assert configure([typed], command="fakecommand")["fakecommand"]["split"] == "val"
    assert run_command("fakecommand", ["split=val"], lambda config: 3) == 3
    assert run_command("fakecommand", ["splitt=val"], lambda config: 3) == 2
    assert "type fakecommand.split=val" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "writer", "more"),
    [("to=lmdb", "lmdb", {}),
     ("imports=[mine.py] to=mine writer.part_records=9", "mine", {"part_records": 9})],
)  # fmt: skip
def test_a_setting_of_a_command_chooses_an_option(
    typed, writer, more, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from penstock import register\n@register('writer', 'mine')\nclass Mine:\n"
        "    def __init__(self, *, part_records: int = 7) -> None: ...\n"
    )
    assert penstock("pack", "path=x", *typed.split(), "--cfg", "job") == 0
    shown = yaml.safe_load(capfd.readouterr().out)
    assert shown["pack"]["to"] == writer
    assert shown["writer"] == {"_target_": f"writer/{writer}", **more}


@pytest.mark.parametrize(
    ("started", "folder", "train"),
    [
        ("/env/bin/penstock", ROOT, "penstock train"),
        ("train.py", ROOT, "python train.py"),
        ("../train.py", ROOT / "docs", "python ../train.py"),
        ("my own/train.py", ROOT, "python 'my own/train.py'"),
        ("/env/pytest/__main__.py", ROOT, "penstock train"),
    ],
)
def test_advice_names_the_program_that_was_started(started, folder, train, monkeypatch):
    monkeypatch.setattr("sys.argv", [started, "sampler=random"])
    monkeypatch.chdir(folder)
    assert (program_of("train"), program_of("pack")) == (train, "penstock pack")


def test_train_is_a_command_among_the_others(capfd):
    assert penstock("--help") == 0
    listed = [line.split()[0] for line in capfd.readouterr().out.splitlines() if line[:2] == "  "]
    assert sorted(listed) == sorted([*COMMANDS, "train"])

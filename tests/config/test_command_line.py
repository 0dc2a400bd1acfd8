"""The programs as users start them: exit status, output, and untouched files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock import compose
from penstock.core import registry
from penstock.pipeline.commands import pack  # noqa: F401 - registers its settings
from penstock.pipeline.config.app import main
from penstock.pipeline.config.options import groups, options_of
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
OWN = ("my_components", "executor")
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


def test_the_printed_config_is_the_config(capsys):
    assert main(["--cfg", "job", "--resolve", "seed=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == compose(["seed=3"])
    assert main(["--cfg", "job", "--resolve", "--package", "loader.batch_size"]) == 0
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


def test_a_mistake_that_is_found_late_is_one_line_and_status_2(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert penstock("train", "dataset.storage.path=.", "loader=inline") == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


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


@pytest.fixture
def parts(monkeypatch):
    """Name modules of components by what to type, and forget the modules after the test."""
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    yield [f"imports=[{ROOT}/examples/{name}.py]" for name in OWN]
    for name in OWN:
        sys.modules.pop(name, None)


def test_help_names_groups_options_and_settings(parts, capfd):
    assert penstock("train", parts[0], "sampler=repeated", "--help") == 0
    text = capfd.readouterr().out
    for group in groups():
        [line] = [line for line in text.splitlines() if line.startswith(f"{group}: ")]
        assert {*options_of(group)} <= {*line.partition(": ")[2].split(", ")}
    assert "  _target_: sampler/repeated\n  times: 2\n" in text
    assert penstock("pack", "to=lmdb", "--help") == 0
    text = capfd.readouterr().out
    assert "\npack:\n" in text and "on_error:" in text


def test_an_engine_of_ones_own_is_an_option(parts):
    settings = compose([parts[1], "loader=executor"])["loader"]
    assert settings == {**compose()["loader"], "engine": "executor"}
    assert compose([parts[1], "loader.engine=executor"])["loader"] == settings

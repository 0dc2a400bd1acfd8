"""Advice names the program that was started, and the names of commands are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.user_errors import program_of
from penstock.pipeline.commands import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("started", "folder", "train", "pack"),
    [
        ("/env/bin/penstock", ROOT, "penstock train", "penstock pack"),
        ("train.py", ROOT, "python train.py", "penstock pack"),
        ("../train.py", ROOT / "docs", "python ../train.py", "penstock pack"),
        ("my own/train.py", ROOT, "python 'my own/train.py'", "penstock pack"),
        ("/env/pytest/__main__.py", ROOT, "penstock train", "penstock pack"),
    ],
)
def test_advice_names_the_program_that_was_started(started, folder, train, pack, monkeypatch):
    monkeypatch.setattr("sys.argv", [started, "sampler=random"])
    monkeypatch.chdir(folder)
    assert (program_of("train"), program_of("pack")) == (train, pack)


def test_train_is_a_command_among_the_others(capsys):
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert sorted(listed) == sorted([*COMMANDS, "train"])
    assert main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err

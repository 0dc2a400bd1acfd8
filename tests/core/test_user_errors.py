"""Advice names the program that the user started."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.user_errors import program_of

ROOT = Path(__file__).resolve().parents[2]


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

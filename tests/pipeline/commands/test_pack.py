"""What packing says, and what can be trained on afterwards."""

from __future__ import annotations

import shlex

import cv2
import numpy as np
import pytest

from pipeline import build_loader, compose
from pipeline.commands import pack
from pipeline.config.command_line import configure


@pytest.fixture
def photographs(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for number in range(6):
            image = draw.integers(0, 255, (72, 80, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photographs" / name / f"{number}.jpg"), image)
    return tmp_path / "photographs"


@pytest.mark.parametrize("val_fraction", [0, 0.5])
def test_the_last_line_says_how_to_train_on_it(photographs, tmp_path, capsys, val_fraction):
    given = [f"dataset.storage.path={photographs}", f"dataset.val_fraction={val_fraction}"]
    assert pack.run(configure([*given, f"pack.path={tmp_path / 'packed'}"], command="pack")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(last.partition("train.py ")[2])
    small = ["loader=inline", "loader.batch_size=2", "loader.drop_last=false"]
    keys = []
    for overrides in (given, words):
        with build_loader(compose([*overrides, *small])) as loader:
            keys.append(sorted(key for batch in loader for key in batch["key"]))
    assert keys[0] == keys[1] != []


def test_what_is_there_already_is_left_alone(photographs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    given = [f"dataset.storage.path={photographs}", f"pack.path={tmp_path / 'mine'}"]
    with pytest.raises(ValueError, match="exists already"):
        pack.run(configure(given, command="pack"))
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]

"""A run's name means that run, although a folder of data has the same name."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import compose
from penstock.pipeline.commands import main
from penstock.pipeline.training.job import train


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "flowers"
    folder.mkdir()
    rows = np.arange(16, dtype=np.uint8)
    np.save(folder / "image.npy", np.tile(rows[:, None, None, None], (1, 8, 8, 3)))
    np.save(folder / "label.npy", rows.astype(np.int64) % 2)
    return [
        "dataset=memmap",
        "dataset.storage.path=flowers",
        "augment=as_is",
        "model.width=8",
        "loader=inline",
        "loader.batch_size=4",
        "trainer.device=cpu",
        "trainer.max_epochs=1",
    ]


def test_a_folder_of_data_does_not_hide_a_run(settings, capsys):
    run = train(compose([*settings, "run.name=flowers"]))["run_dir"]
    train(compose([*settings, "run.name=other"]))
    assert main(["evaluate", "checkpoint=flowers", "split=val"]) == 0
    assert run in capsys.readouterr().out
    assert compose(["trainer.resume=flowers"])["trainer"]["resume"] == run


def test_the_remedy_names_no_model_of_another_run(settings, capsys):
    named = train(compose([*settings, "run.name=flower"]))["run_dir"]
    other = train(compose([*settings, "run.name=zebra"]))["run_dir"]
    assert main(["evaluate", "checkpoint=flowers"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint" in said and named in said and other not in said
    assert main(["evaluate", "checkpoint=unknown"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint" in said and named not in said and other not in said

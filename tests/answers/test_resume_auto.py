"""`trainer.resume=auto` resumes what only runs otherwise, and names what trains otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from penstock import compose
from penstock.pipeline.training.job import train


@pytest.fixture
def settings(tmp_path):
    rows = np.arange(32, dtype=np.uint8)
    np.save(tmp_path / "image.npy", np.tile(rows[:, None, None, None], (1, 8, 8, 3)))
    np.save(tmp_path / "label.npy", rows.astype(np.int64) % 2)
    return [
        "dataset=memmap",
        f"dataset.storage.path={tmp_path}",
        "augment=as_is",
        "model.width=8",
        "loader=inline",
        "loader.batch_size=8",
        f"outputs={tmp_path}/outputs",
        "trainer.device=cpu",
        "trainer.max_epochs=2",
        "trainer.resume=auto",
        "scheduler=none",
    ]


def stopped(results) -> str:
    """Make a finished run one that was stopped."""
    Path(results["run_dir"], "summary.json").unlink()
    return results["run_dir"]


@pytest.mark.parametrize("name", [[], ["run.name=base"]])
@pytest.mark.parametrize(
    "changed",
    [
        ["trainer.log_every=1"],
        ["trainer.max_epochs=3"],
        ["trainer.max_epochs=1"],
        ["trainer.max_steps=7"],
        ["loader=threads", "loader.num_workers=1"],
    ],
)
def test_a_run_resumes_with_another_length_log_or_engine(settings, name, changed):
    run = stopped(train(compose([*settings, *name])))
    assert train(compose([*settings, *name, *changed]))["run_dir"] == run


def test_a_shorter_length_keeps_the_steps_that_are_done(settings):
    first = train(compose(settings))
    stopped(first)
    assert train(compose([*settings, "trainer.max_epochs=1"]))["step"] == first["step"]


@pytest.mark.parametrize(
    ("changed", "key", "values"),
    [
        ("optimizer.lr=0.5", "optimizer.lr", ("0.5", "0.001")),
        ("model.width=16", "model.width", ("16", "8")),
        ("loader.batch_size=4", "loader.batch_size", ("4", "8")),
    ],
)
def test_a_run_with_another_value_is_new_and_the_key_is_named(
    settings, capsys, changed, key, values
):
    first = stopped(train(compose([*settings, "optimizer.lr=0.001"])))
    capsys.readouterr()
    second = train(compose([*settings, "optimizer.lr=0.001", changed]))
    said = next(line for line in capsys.readouterr().out.splitlines() if key in line)
    assert second["run_dir"] != first and first in said
    assert all(value in said for value in values)


@pytest.mark.parametrize("finished", [False, True])
def test_no_run_takes_the_name_of_another(settings, tmp_path, finished):
    typed = [*settings, "optimizer.lr=0.001", "run.name=base"]
    results = train(compose(typed))
    run = results["run_dir"] if finished else stopped(results)
    with pytest.raises(ValueError, match=r"optimizer\.lr") as error:
        train(compose([*typed, "optimizer.lr=0.5"]))
    assert "run.name" in str(error.value) and run in str(error.value)
    assert [str(config.parent) for config in tmp_path.glob("outputs/*/*/config.yaml")] == [run]
    # Both remedies work.
    other = train(compose([*typed, "optimizer.lr=0.5", "run.name=faster"]))
    assert other["run_dir"] != run
    values = ["optimizer.lr=0.5", "run.name=base", f"trainer.resume={run}", "trainer.max_epochs=3"]
    assert train(compose(values))["run_dir"] == run
    assert yaml.safe_load(Path(run, "config.yaml").read_text())["optimizer"]["lr"] == 0.5


def test_a_finished_run_keeps_its_name(settings):
    run = train(compose([*settings, "run.name=base"]))["run_dir"]
    assert train(compose([*settings, "run.name=base"]))["run_dir"] == run

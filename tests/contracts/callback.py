"""What every callback promises: a run with it goes on exactly, and without it too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.pipeline.training import job
from penstock.pipeline.training.checkpoint import read_checkpoint
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import the_folder


def check_callback(name: str, arguments: Mapping[str, Any], tmp_path: Path) -> Path:
    """Train a tiny job straight and stopped after every step, and compare all that they leave.

    Args:
        name: Of the registered callback.
        arguments: Its arguments.
        tmp_path: Where the runs lie.

    Returns:
        The folder of the straight run.
    """
    node = {"_target_": f"callback/{name}", **arguments}
    trainer = {"max_epochs": 2, "resume": "auto"}
    straight, stopped = (config_of(tmp_path / each, trainer) for each in ("straight", "stopped"))
    straight["callback"] = stopped["callback"] = {name: node}
    folder = Path(job.train(straight)["run_dir"])

    class Stops(job.Interrupt):
        def __enter__(self) -> Stops:
            super().__enter__()
            self.requested = True
            return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "Interrupt", Stops)
        for _ in range(9):
            with pytest.raises(SystemExit):
                job.train(stopped)
    job.train(stopped)
    other = the_folder(tmp_path / "stopped")
    one, two = (read_checkpoint(each / "checkpoints" / "last.pt") for each in (folder, other))
    for part in ("model", "optimizer", "callbacks", "state"):
        assert_same(one[part], two[part], part)
    assert (folder / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()

    without = {**stopped, "callback": {}}
    without["trainer"] = {**trainer, "max_epochs": 3, "resume": str(other), "device": "cpu"}
    job.train(without)  # goes on without it
    without["trainer"] |= {"max_epochs": 4}
    job.train({**without, "callback": {name: node}})  # and with it again
    return folder


def assert_same(one: Any, other: Any, where: str) -> None:
    """Compare what a checkpoint holds, to the bit."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}.{number}")
    else:
        assert one == other, where

"""Contract of a callback: a run resumes exactly with it, and also without it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from penstock import compose, fit, register
from penstock.core.contracts import Callback
from tests.contracts.noise import typed

TRAINER = [
    "model.width=8", "scheduler=none", "trainer.device=cpu", "trainer.num_threads=1",
    "trainer.progress=off", "trainer.log_every=3", "trainer.checkpoint_every=2",
    "trainer.max_epochs=3", "trainer.resume=auto", "loader=inline", "loader.batch_size=8",
    "dataset.val_fraction=0.3", "augment.device={normalize: {_target_: batch_transform/normalize}}",
]  # fmt: skip


@register("callback", "interrupts")
class Interrupts(Callback):
    """Presses Ctrl-C after some steps; the run ends with the next one.

    Attributes:
        steps: Steps before Ctrl-C, of each run to come; none is pressed without them.
    """

    steps: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.waits = self.steps.pop(0) if self.steps else 0

    def stepped(self, step: int) -> None:
        self.waits -= 1
        if self.waits == 0:
            signal.raise_signal(signal.SIGINT)


def check_callback(name: str, arguments: Mapping[str, Any], tmp_path: Path) -> Path:
    """Train a job in one go, and again with stops after odd and even steps; compare the results.

    Args:
        name: Name of the registered callback.
        arguments: Its arguments.
        tmp_path: Folder of the runs.

    Returns:
        The folder of the run in one go.
    """
    base = compose([*typed(53), *TRAINER])
    steps = {"interrupts": {"_target_": "callback/interrupts"}}
    node = {name: {"_target_": f"callback/{name}", **arguments}}

    def train(outputs: Path, callbacks: Mapping[str, Any], **trainer: Any) -> Path:
        config = {**base, "outputs": str(outputs), "callback": {**steps, **callbacks}}
        return Path(fit({**config, "trainer": {**base["trainer"], **trainer}})["run_dir"])

    folder = train(tmp_path / "straight", node)
    stops = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interrupts, "steps", [1, 2] * 6)
        while not list((tmp_path / "stopped").glob("*/*/summary.json")):
            try:
                train(tmp_path / "stopped", node)
            except SystemExit:
                stops += 1
            assert stops <= 12
    assert stops >= 5
    [other] = (tmp_path / "stopped").glob("*/*")
    one, two = (_checkpoint(each) for each in (folder, other))
    for part in ("model", "optimizer", "callbacks", "state"):
        assert_same(one[part], two[part], part)
    assert (folder / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()

    train(tmp_path / "stopped", {}, max_epochs=4, resume=str(other))
    train(tmp_path / "stopped", node, max_epochs=5, resume=str(other))
    return folder


def _checkpoint(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(run / "checkpoints/last.pt", weights_only=True)
    return found


def assert_same(one: Any, other: Any, where: str) -> None:
    """Compare two parts of checkpoints, to the bit."""
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

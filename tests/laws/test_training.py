"""A run with real data whose last checkpoint was cut short ends as the run that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import compose, fit
from tests.laws.runs import IMPORTS, overrides

TRAINER = [
    "model.width=8", "trainer.device=cpu", "trainer.num_threads=1", "trainer.progress=off",
    "trainer.checkpoint_every=2", "trainer.log_every=2", "scheduler=none",
    "loader.num_workers=1",
]  # fmt: skip


def _start(photos: Path, folder: Path, max_steps: int) -> dict[str, Any]:
    base = overrides(photos, sampler="weighted", augment="strong")
    return _train([*base, *TRAINER, f"outputs={folder}", f"trainer.max_steps={max_steps}"])


def _train(given: list[str]) -> dict[str, Any]:
    result = fit(compose(given))
    result["folder"] = Path(result["run_dir"])
    file = result["folder"] / "checkpoints" / "last.pt"
    result["weights"] = torch.load(file, weights_only=True)["model"]
    return result


@pytest.mark.parametrize(
    "damage",
    [
        "cut short",
        "a flipped byte",
        *(pytest.param(how, marks=pytest.mark.slow) for how in ("empty", "missing")),
    ],
)
def test_a_resume_uses_and_reports_the_previous_checkpoint(damage, photos, tmp_path, capsys):
    # An epoch has 9 batches: step 7 is in the first epoch, step 13 in the second.
    straight = _start(photos, tmp_path / "straight", 13)
    stopped = _start(photos, tmp_path / "stopped", 7)
    last = stopped["folder"] / "checkpoints" / "last.pt"
    if damage == "missing":
        last.unlink()
    elif damage == "a flipped byte":
        weight = next(each for each in stopped["weights"].values() if each.numel() > 100)
        data, place = last.read_bytes(), weight.numpy().tobytes()
        assert data.count(place) == 1
        last.write_bytes(data.replace(place, bytes([place[0] ^ 1]) + place[1:]))
    else:
        last.write_bytes(last.read_bytes()[: 0 if damage == "empty" else -1000])
    capsys.readouterr()
    given = [IMPORTS, f"trainer.resume={stopped['folder']}", "trainer.max_steps=13"]
    resumed = _train(given)
    said = "".join(capsys.readouterr())
    assert "previous.pt" in said or damage == "missing"
    assert ("cut short" in said) == (damage in ("cut short", "empty"))
    assert resumed["folder"] == stopped["folder"]
    different = [
        name
        for name, weight in straight["weights"].items()
        if not torch.equal(weight, resumed["weights"][name])
    ]
    assert different == []
    assert resumed["val/accuracy"] == straight["val/accuracy"]

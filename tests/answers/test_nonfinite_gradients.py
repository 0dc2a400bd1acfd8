"""A finite loss with gradients that are infinite or NaN never reaches the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.pipeline.training.job import train

MODEL = """
import torch
from torch import nn
from penstock import register


@register("model", "poisoned")
class Poisoned(nn.Module):
    def __init__(self, num_classes: int, position: int) -> None:
        super().__init__()
        self.position = position
        self.body = nn.Linear(12, 8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, batch):
        logits = self.head(self.body(batch["image"].float().flatten(1) / 255))
        if self.training and (batch["position"] == self.position).any():
            # Zero forward; its derivative is infinite times zero, which is NaN.
            logits = logits + (0 * self.head.bias[:1]).sum().sqrt()
        return logits
"""
STEPS, EPOCHS = 9, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = np.arange(64)
    colours = (rows % 2 * 200).astype(np.uint8)
    np.save(folder / "image.npy", np.tile(colours[:, None, None, None], (1, 2, 2, 3)))
    np.save(folder / "label.npy", rows % 2)
    (folder / "poisoned_model.py").write_text(MODEL)
    return folder


@pytest.fixture
def settings(data, tmp_path):
    return [
        f"imports=[{data}/poisoned_model.py]",
        "dataset=memmap",
        f"dataset.storage.path={data}",
        "augment=as_is",
        "model=poisoned",
        "model.position=17",
        "loader=inline",
        "loader.batch_size=6",
        "optimizer.lr=0.05",
        "scheduler=none",
        f"outputs={tmp_path}/outputs",
        f"trainer.max_epochs={EPOCHS}",
        "trainer.device=cpu",
        "trainer.log_every=3",
    ]


def weights_of(run: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(run, "checkpoints/last.pt"), weights_only=True)["model"]


@pytest.mark.parametrize("more", [(), ("clip_norm=1",), ("accumulate=2",), ("amp=bf16",)])
def test_such_a_step_is_skipped(settings, more):
    results = train(
        compose([*settings, "trainer.on_nonfinite=skip", *(f"trainer.{each}" for each in more)])
    )
    assert results["step"] == EPOCHS * (5 if "accumulate=2" in more else STEPS)
    assert all(each.isfinite().all() for each in weights_of(results["run_dir"]).values())
    assert results["val/accuracy"] == 1.0


def test_such_a_step_stops_the_run_and_its_model_is_saved_nowhere(settings, tmp_path):
    with pytest.raises(ValueError, match=r"trainer\.on_nonfinite"):
        train(compose([*settings, "model.position=53"]))
    assert not list(tmp_path.glob("outputs/*/*/checkpoints/*.pt"))


def test_such_steps_again_and_again_stop_the_run(settings):
    batches = ["trainer.overfit_batches=3", "trainer.max_epochs=12", "trainer.on_nonfinite=skip"]
    results = train(compose([*settings, *batches]))
    assert results["step"] == 36, "others lie between them"
    with pytest.raises(ValueError, match=r"trainer\.on_nonfinite"):
        train(compose([*settings, *batches, "model.position=3", "trainer.overfit_batches=1"]))


def test_gradients_that_no_loss_scale_makes_finite_stop_the_run(settings):
    batches = ["trainer.amp=fp16", "trainer.overfit_batches=1", "trainer.max_epochs=60"]
    results = train(compose([*settings, *batches]))
    assert results["step"] == 60, "the poisoned row is of another batch"
    for on_nonfinite in ("stop", "skip"):
        typed = [*settings, *batches, "model.position=3", f"trainer.on_nonfinite={on_nonfinite}"]
        with pytest.raises(ValueError, match=r"trainer\.amp"):
            train(compose(typed))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_skip_such_a_step_together(settings, tmp_path, strategy):
    typed = [*settings, "trainer.on_nonfinite=skip", f"trainer.strategy={strategy}"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, *command, *typed],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=250,
    )
    [summary] = tmp_path.glob("outputs/*/*/summary.json")
    results = json.loads(summary.read_text())
    assert results["step"] == EPOCHS * STEPS and results["val/accuracy"] == 1.0

"""What is done with a trained model is done with one whose checkpoint lies in shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from penstock import compose
from penstock.pipeline.commands import main
from penstock.pipeline.training.checkpoint import read_checkpoint
from penstock.pipeline.training.job import train


def test_a_run_in_shards_is_evaluated_predicted_and_exported(tmp_path, data_dir, monkeypatch):
    overrides = [
        f"data_dir={data_dir}", f"outputs={tmp_path}", "loader=inline", "loader.batch_size=16",
        "trainer.max_steps=4", "trainer.progress=off", "trainer.strategy=fsdp",
        "trainer.device=cpu", "model.width=8",
    ]  # fmt: skip
    results = train(compose(overrides))
    run = results["run_dir"]
    best = Path(run, "checkpoints", "best.pt")
    assert "shards" in torch.load(best, weights_only=True)

    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", f"checkpoint={run}", "output=figures.json"]) == 0
    metrics = json.loads(Path("figures.json").read_text())["metrics"]
    assert metrics["accuracy"] == results["val/accuracy"]
    assert metrics["loss"] == pytest.approx(results["val/loss"], rel=1e-5)
    assert main(["predict", f"checkpoint={run}", "output=rows.csv"]) == 0
    assert len(Path("rows.csv").read_text().splitlines()) == 601
    assert main(["export", run, "output=model.pt"]) == 0
    exported, weights = torch.load("model.pt", weights_only=True), read_checkpoint(best)["model"]
    assert all(torch.equal(exported[name], weights[name]) for name in weights)

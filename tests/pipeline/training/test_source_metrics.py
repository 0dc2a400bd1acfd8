"""Metrics of each source of a mix: of its own valid rows, over all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.validation import SourceMetrics

WORLD = World(rank=0, size=1, device=torch.device("cpu"))


def loader(*names: str) -> Any:
    return SimpleNamespace(classes_of={"source": names or None}.get)


def batch(sources: list[int], valid: list[bool]) -> dict[str, torch.Tensor]:
    return {
        "label": torch.zeros(len(sources), dtype=torch.int64),
        "source": torch.tensor(sources),
        "valid": torch.tensor(valid),
    }


def logits(right: list[bool]) -> torch.Tensor:
    return torch.tensor([[1.0, 0.0] if each else [0.0, 1.0] for each in right])


@pytest.fixture
def task() -> Classification:
    return Classification(num_classes=2, class_names=("ant", "bee"))


def test_each_source_has_figures_of_its_valid_rows(task):
    metrics = SourceMetrics(task, loader("web", "own", "none"), WORLD)
    rows = batch([0, 1, 1, 0, 1], [True, True, True, True, False])
    metrics.update(logits([True, True, False, True, True]), rows)
    metrics.update(logits([False]), batch([0], [True]))
    assert metrics.compute() == pytest.approx({"web/accuracy": 2 / 3, "own/accuracy": 0.5})


def test_without_a_mix_there_are_none(task):
    metrics = SourceMetrics(task, loader(), WORLD)
    metrics.update(logits([True]), {"label": torch.zeros(1), "valid": torch.ones(1)})
    assert metrics.compute() == {}


def test_a_batch_that_lost_the_field_counts_for_none(task):
    metrics = SourceMetrics(task, loader("web", "own"), WORLD)
    rows = batch([0], [True])
    del rows["source"]
    metrics.update(logits([True]), rows)
    assert metrics.compute() == {}

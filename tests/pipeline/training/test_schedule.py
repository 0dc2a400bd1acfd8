"""Schedules count in their own unit, and look at what is watched."""

from __future__ import annotations

import csv
import math
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch

from penstock import compose
from penstock.core import registry
from penstock.pipeline.config.components import register_components
from penstock.pipeline.training import job
from penstock.pipeline.training.settings import TrainerSettings, monitored
from tests.pipeline.training.tiny_runs import assert_equal_weights, checkpoint, weights

SMALL = [
    "model.width=8", "loader=inline", "trainer.limit_train_batches=3", "trainer.log_every=1",
    "trainer.limit_val_batches=1", "trainer.save=false", "optimizer.lr=0.5", "logger=csv",
]  # fmt: skip


def lines(tmp_path: Path, data_dir: Path, *overrides: str) -> list[dict[str, str]]:
    """The lines of a run's metrics."""
    config = compose([*SMALL, f"data_dir={data_dir}", f"outputs={tmp_path}", *overrides])
    with open(Path(job.train(config)["run_dir"], "metrics.csv")) as file:
        return list(csv.DictReader(file))


def rates(tmp_path: Path, data_dir: Path, *overrides: str) -> list[float]:
    """The rate of each step of a run."""
    rows = lines(tmp_path, data_dir, *overrides)
    return [float(row["lr"]) for row in rows if row["train/loss"]]


def test_a_schedule_of_epochs_is_stepped_after_epochs(tmp_path, data_dir):
    found = rates(tmp_path, data_dir, "scheduler=step", "scheduler.step_size=1",
                  "trainer.max_epochs=3")  # fmt: skip
    assert found == pytest.approx([0.5] * 3 + [0.05] * 3 + [0.005] * 3)


def test_one_that_torch_steps_by_batches_is(tmp_path, data_dir):
    found = rates(tmp_path, data_dir, "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR",
                  "~scheduler.warmup", "~scheduler.final", "+scheduler.max_lr=0.5",
                  "trainer.max_epochs=2")  # fmt: skip
    assert len(set(found)) == 6


def test_who_types_steps_gets_steps(tmp_path, data_dir):
    found = rates(tmp_path, data_dir, "scheduler=step", "scheduler.step_size=2",
                  "trainer.max_epochs=1", "trainer.scheduler_interval=step")  # fmt: skip
    assert found == pytest.approx([0.5, 0.5, 0.05])


def test_one_of_your_own_says_it_by_what_it_asks_for(tmp_path, data_dir, monkeypatch):
    register_components()
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    @registry.register("scheduler", "halves")
    def halves(*, optimizer, total_epochs: int | None):
        assert total_epochs == 2
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    found = rates(tmp_path, data_dir, "scheduler=halves", "trainer.max_epochs=2")
    assert found == pytest.approx([0.5] * 3 + [0.25] * 3)


@pytest.mark.parametrize("name", ["loss", "val/loss", "val_loss"])
def test_what_is_watched_may_be_spelt_as_it_is_written(name):
    assert monitored(TrainerSettings(monitor=name), ["accuracy"]) == "loss"


def test_a_plateau_is_one_of_what_is_watched(tmp_path, data_dir):
    run = ["scheduler=plateau", "scheduler.patience=0", "trainer.max_epochs=4", "augment=none"]
    cut = []
    for number, watched in enumerate((["loss"], ["loss", "trainer.monitor_mode=max"])):
        rows = lines(
            tmp_path / str(number), data_dir, *run, f"trainer.monitor={watched[0]}", *watched[1:]
        )
        losses = [float(row["val/loss"]) for row in rows if row["val/loss"]]
        rates = [float(row["lr"]) for row in rows if row["val/loss"]]
        best = list(accumulate(losses, max if number else min))
        improved = [a != b for a, b in pairwise(best[:-1])]
        assert [a == b for a, b in pairwise(rates[1:])] == improved
        cut.append(sum(improved))
    assert cut[0] > cut[1]  # as the loss falls


def test_a_warm_up_counts_steps_before_a_schedule_of_epochs(tmp_path, data_dir):
    found = rates(tmp_path, data_dir, "scheduler=step", "scheduler.step_size=1",
                  "scheduler.warmup=4", "trainer.max_epochs=2")  # fmt: skip
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.04, 0.05, 0.05])


def test_a_schedule_of_steps_begins_behind_the_warm_up(tmp_path, data_dir):
    found = rates(tmp_path, data_dir, "scheduler.warmup=2", "trainer.max_epochs=2")
    falling = [0.25 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert found == pytest.approx([0.5 / 3, 1 / 3, *falling])


WAYS = [
    "optimizer.groups.head={params:[head],lr:0.1}", "optimizer.decay_norms=false",
    "optimizer.layer_decay=0.5", "scheduler=sequence", "scheduler.warmup=2",
    "scheduler.schedules.flat._target_=torch.optim.lr_scheduler.ConstantLR",
    "scheduler.schedules.fall._target_=scheduler/cosine", "scheduler.lengths.flat=2",
    "optimizer.lr=0.01", "trainer.save=true", "trainer.num_threads=1",
]  # fmt: skip


def test_a_run_with_groups_and_a_sequence_goes_on_to_the_bit(tmp_path, data_dir, capsys):
    def run(folder, *typed):
        config = [*SMALL, *WAYS, f"data_dir={data_dir}", f"outputs={tmp_path / folder}", *typed]
        return Path(job.train(compose(config))["run_dir"])

    straight = run("a", "trainer.max_steps=6")
    assert (
        "rates 10 groups of parameters: 1 (lr 0.005, weight_decay 0.05), "
        in capsys.readouterr().out
    )
    # The same length in the schedule's eyes: it is stopped, not meant to be shorter.
    half = run("b", "trainer.max_steps=6", "trainer.max_epochs=1")
    again = run("b", f"trainer.resume={half}", "trainer.max_epochs=10", "trainer.max_steps=6")
    assert_equal_weights(weights(straight), weights(again))
    states = [checkpoint(each)["optimizer"]["param_groups"] for each in (straight, again)]
    assert states[0] == states[1]
    with pytest.raises(ValueError, match=r"head.bias is in another group of the optimizer; give"):
        run("b", f"trainer.resume={half}", "trainer.max_steps=9",
            "optimizer.groups.head.params=[head.weight]")  # fmt: skip

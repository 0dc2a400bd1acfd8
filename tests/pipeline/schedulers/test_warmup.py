"""A warm-up before every schedule, and schedules one after the other."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, OneCycleLR

from penstock.pipeline.config.compose import compose
from penstock.pipeline.learning.building import build_scheduler, build_warmup
from penstock.pipeline.schedulers.sequence import sequence
from penstock.pipeline.schedulers.warmup import WarmupSettings


def made():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)


def test_the_rate_rises_in_a_share_of_the_run_or_in_steps():
    warmup, optimizer = WarmupSettings(warmup=0.2).over(20), made()
    seen = []
    for step in range(6):
        with warmup.at(step, optimizer):
            seen.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[0]["lr"] == 2.0
    assert seen == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])
    assert WarmupSettings(warmup=7).over(None).steps == 7
    with pytest.raises(ValueError, match=r"share of the run.*give steps, such as"):
        WarmupSettings(warmup=0.2).over(None)


@pytest.mark.parametrize("name", ["step", "plateau", "none", "cosine"])
def test_every_schedule_takes_one(name):
    config = compose([f"scheduler={name}", "scheduler.warmup=3"])
    assert build_warmup(config, None).steps == 3
    build_scheduler(config, made(), 9)


def test_schedules_follow_one_another():
    kinds = {
        "up": lambda length: partial(LinearLR, start_factor=0.5, total_iters=length),
        "flat": lambda length: partial(ConstantLR, factor=1.0),
        "down": lambda length: partial(CosineAnnealingLR, T_max=length),
    }
    optimizer = made()
    schedules = {name: lambda n, make=make: make(n)(optimizer) for name, make in kinds.items()}
    schedule = sequence(optimizer=optimizer, total_steps=10, schedules=schedules,
                        lengths={"up": 2, "flat": 0.3})  # fmt: skip
    seen = []
    for _ in range(10):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen[:6] == pytest.approx([1.0, 1.5, 2.0, 2.0, 2.0, 2.0])
    assert seen[5:] == sorted(seen[5:], reverse=True) and optimizer.param_groups[0]["lr"] < 1e-9


def test_one_that_sets_its_own_rate_is_refused():
    optimizer = made()
    schedules = {"a": lambda n: OneCycleLR(optimizer, 1.0, total_steps=n), "b": ConstantLR}
    with pytest.raises(ValueError, match=r"schedules.a: OneCycleLR begins from a rate of its own"):
        sequence(optimizer=optimizer, total_steps=9, schedules=schedules, lengths={"a": 4})

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.schedulers.cosine import cosine
from penstock.pipeline.schedulers.none import constant


def rates(total: int, **options) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = cosine(optimizer=optimizer, total_steps=total, **options)
    seen = []
    for _ in range(total + 1):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_it_rises_then_falls_to_the_end():
    seen = rates(20, warmup=0.2, final=0.1)
    assert seen[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert seen[4:] == sorted(seen[4:], reverse=True)
    assert seen[12] == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert seen[20] == pytest.approx(0.2)


def test_without_warmup_it_starts_at_the_peak():
    assert rates(10, warmup=0.0)[0] == 2.0


def test_mistakes_say_what_to_do():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match=r"set trainer.max_steps"):
        cosine(optimizer=optimizer, total_steps=None)
    assert constant(optimizer=optimizer) is None

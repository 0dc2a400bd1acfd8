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


def test_it_falls_from_the_peak_to_the_end():
    seen = rates(16, final=0.1)
    assert seen[0] == 2.0 and seen == sorted(seen, reverse=True)
    assert seen[8] == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert seen[16] == pytest.approx(0.2)


def test_mistakes_say_what_to_do():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(ValueError, match=r"set trainer.max_steps"):
        cosine(optimizer=optimizer, total_steps=None)
    assert constant(optimizer=optimizer) is None

"""The batches of an optimizer step are fetched one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.pipeline.training.loop import _groups


@pytest.mark.parametrize("accumulate", [1, 3, 4])
def test_no_more_than_one_batch_is_fetched_ahead(accumulate):
    fetched: list[int] = []
    batches: Any = (fetched.append(n) or {"n": n} for n in range(10))
    state: Any = SimpleNamespace(batch=0, steps_reached=lambda settings: False)
    settings: Any = SimpleNamespace(train_batches=None, accumulate=accumulate)
    steps, used = [], 0
    for group in _groups(batches, 10, state, settings):
        steps.append([])
        for batch, is_last in group:
            used += 1
            assert batch == {"n": used - 1} and used <= len(fetched) <= used + 1 - is_last
            steps[-1].append(is_last)
    whole, rest = divmod(10, accumulate)
    sizes = [accumulate] * whole + [rest] * (rest > 0)
    assert steps == [[False] * (size - 1) + [True] for size in sizes]

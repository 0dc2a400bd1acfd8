"""All executors give the batches of the inline executor."""

from __future__ import annotations

import pytest

from tests.contracts.engine import check_engine


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("engine", ["threads", "processes", "torch", None])
def test_any_number_of_workers(engine, num_workers):
    check_engine(engine, num_workers=num_workers)


@pytest.mark.parametrize(
    ("engine", "prefetch_factor"), [("threads", 1), ("processes", 5), ("torch", 1)]
)
def test_without_persistent_workers(engine, prefetch_factor):
    changes = {"persistent_workers": False, "prefetch_factor": prefetch_factor}
    check_engine(engine, num_workers=2, **changes)

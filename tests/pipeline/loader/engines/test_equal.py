"""Threads and processes give the batches of the inline engine."""

from __future__ import annotations

import pytest

from tests.contracts.engine import check_engine

FORK = {"multiprocessing_context": "fork"}


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_threads(num_workers):
    check_engine("threads", num_workers=num_workers)


@pytest.mark.parametrize(
    ("processes", "num_workers"), [(1, 1), (1, 2), (2, 2), (2, 3), (None, 2), (None, 0)]
)
def test_processes(processes, num_workers):
    check_engine("processes", processes=processes, num_workers=num_workers, **FORK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_any_start_method(start_method):
    check_engine("processes", num_workers=2, multiprocessing_context=start_method)


@pytest.mark.parametrize("prefetch_factor", [1, 5])
@pytest.mark.parametrize(("engine", "processes"), [("threads", 0), ("processes", 1)])
def test_without_persistent_workers(engine, processes, prefetch_factor):
    check_engine(
        engine,
        processes=processes,
        num_workers=2,
        persistent_workers=False,
        prefetch_factor=prefetch_factor,
        **FORK,
    )

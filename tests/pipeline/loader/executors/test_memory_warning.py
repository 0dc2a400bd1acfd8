"""Batches ahead that do not fit into memory are told, with a number that fits."""

from __future__ import annotations

import logging
import re

import pytest

from penstock.pipeline.loader import scheduler
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

N, SIZE = 64, 128
BATCH_BYTES = 8 * SIZE * SIZE * 3


@pytest.fixture
def told(monkeypatch, caplog):
    """What is told where so many batches would fit into memory, by `ranks` on the machine."""

    def run(fitting: float, *, ranks: int = 1, **settings: object) -> str:
        monkeypatch.setattr(scheduler, "_said", set())
        monkeypatch.setattr(scheduler, "available_bytes", lambda: int(fitting * BATCH_BYTES))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        caplog.clear()
        ways = {"engine": "threads", "num_workers": 4, "prefetch_factor": 2, **settings}
        with caplog.at_level(logging.WARNING), make_loader(FakeDataset(N, size=SIZE), **ways) as it:
            digests(it, epochs=2)
        return "".join(r.getMessage() for r in caplog.records if "batches ahead" in r.getMessage())

    return run


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_once_and_with_a_number_of_workers_that_fits(told, engine):
    line = told(4.5, engine=engine)
    assert line.count("batches ahead") == 1 and line.startswith("loader: 8 batches ahead of ")
    fitting = int(re.search(r"type loader\.num_workers=(\d+),", line)[1])
    assert fitting == 2
    assert not told(4.5, num_workers=fitting)


def test_a_batch_too_large_for_any_worker(told):
    assert "type a smaller loader.batch_size," in told(1.2)


def test_other_ranks_of_the_machine_have_batches_too(told):
    assert not told(9.5)
    assert "type loader.num_workers=1," in told(9.5, ranks=4)


def test_who_computes_nothing_ahead_is_told_nothing(told):
    assert not told(0.5, num_workers=0)

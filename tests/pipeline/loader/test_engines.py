"""Equal batches from every engine, and how workers fail."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time

import psutil
import pytest

from penstock.pipeline.loader.executors import placement
from penstock.pipeline.loader.worker_errors import LoaderTimeoutError, WorkerError
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.engine import check_engine
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader


@pytest.fixture
def workers():
    """Tells the children that a test has started; others may have left some of theirs."""
    before = multiprocessing.active_children()
    return lambda: [each for each in multiprocessing.active_children() if each not in before]


QUICK = {"engine": "torch", "num_workers": 2}


def test_inline():
    check_engine("inline")


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_torch_with_any_number_of_workers(num_workers):
    check_engine("torch", num_workers=num_workers)


@pytest.mark.parametrize(
    "start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_torch_with_any_start_method(start_method):
    check_engine("torch", num_workers=2, multiprocessing_context=start_method)


@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_torch_without_persistent_workers(prefetch_factor):
    check_engine(
        "torch",
        num_workers=2,
        persistent_workers=False,
        prefetch_factor=prefetch_factor,
    )


def test_spawned_workers():
    settings = {**QUICK, "multiprocessing_context": "spawn", "num_workers": 1}
    with make_loader(FakeDataset(40), **settings) as loader:
        assert digests(loader, epochs=2) == digests(make_loader(FakeDataset(40)), epochs=2)


def test_no_worker_outlives_its_loader(workers):
    with make_loader(FakeDataset(40), **QUICK) as loader:
        next(iter(loader))
        assert len(workers()) == 2
    assert not workers()
    loader = make_loader(FakeDataset(40), persistent_workers=False, **QUICK)
    iterator = iter(loader)
    next(iterator)
    assert workers()
    del iterator
    loader._stop()
    assert not workers()


def test_persistent_workers_stay(workers):
    with make_loader(FakeDataset(40), **QUICK) as loader:
        digests(loader)
        before = {child.pid for child in workers()}
        digests(loader)
        assert {child.pid for child in workers()} == before


def test_a_killed_worker_is_named_at_once():
    start = time.monotonic()
    settings = {**QUICK, "timeout_s": 200}
    with make_loader(FakeDataset(40, deadly=20), **settings) as loader:
        with pytest.raises(WorkerError, match=r"worker process \d+ was killed by signal 9") as e:
            digests(loader)
        assert "memory" in str(e.value) and "\n" not in str(e.value)
        assert time.monotonic() - start < 200
        loader.dataset.deadly = None
        assert len(digests(loader)) == 5, "it starts again after a death"


def test_a_worker_killed_from_outside(workers):
    with make_loader(FakeDataset(400, slow_s=0.02), **QUICK) as loader:
        iterator = iter(loader)
        next(iterator)
        psutil.Process(workers()[0].pid).kill()
        with pytest.raises((WorkerError, RuntimeError), match="killed"):
            for _ in iterator:
                pass


def test_a_hanging_worker_is_given_up(workers):
    start = time.monotonic()
    with (
        make_loader(FakeDataset(40, slow_s=60), timeout_s=1, **QUICK) as loader,
        pytest.raises(LoaderTimeoutError, match=r"timeout_s=1 s.*raise loader.timeout_s"),
    ):
        digests(loader)
    assert time.monotonic() - start < 50
    assert not workers()


def test_a_worker_error_carries_its_traceback():
    with make_loader(FakeDataset(40, crash=20), **QUICK) as loader:
        with pytest.raises(KeyError) as caught:
            digests(loader)
        cause = str(caught.value.__cause__)
        assert "in worker process" in cause and "in _one" in cause


class Unpicklable(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__("two arguments")


class _RaisesUnpicklable(FakeDataset):
    def fetch(self, indices, positions, epoch):
        raise Unpicklable(1, 2)


def test_an_exception_that_cannot_travel_is_told():
    with (
        make_loader(_RaisesUnpicklable(40), **QUICK) as loader,
        pytest.raises(WorkerError, match="Unpicklable: two arguments"),
    ):
        digests(loader)


class _Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def test_what_cannot_be_sent_to_workers_is_told():
    settings = {**QUICK, "multiprocessing_context": "spawn"}
    with (
        make_loader(_Locked(40), **settings) as loader,
        pytest.raises(ValueError, match=r"cannot be sent to processes.*loader.engine=threads"),
    ):
        digests(loader)


def test_more_workers_than_cores_warn_once(caplog, recwarn):
    placement._said.clear()
    many = len(os.sched_getaffinity(0)) + 1
    expected = digests(make_loader(FakeDataset(20)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with make_loader(FakeDataset(20), **{**QUICK, "num_workers": many}) as loader:
                assert digests(loader) == expected
    assert sum("CPU cores" in message for message in caplog.messages) == 1
    assert not [warning for warning in recwarn if "DataLoader" in str(warning.message)]


def test_many_kept_batches_do_not_run_out_of_descriptors():
    with make_loader(FakeDataset(1500), batch_size=1, **QUICK) as loader:
        kept = list(loader)
    assert len(kept) == 1500


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match=r"loader.engine is 'warp'; engines: .*inline"):
        make_loader(FakeDataset(8), engine="warp")


def test_sampler_position_is_all_that_matters():
    shuffled = digests(make_loader(FakeDataset(53), RandomSampler(53, seed=1)))
    assert shuffled != digests(make_loader(FakeDataset(53), RandomSampler(53, seed=2)))

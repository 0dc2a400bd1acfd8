"""Equal batches from every engine, and how workers fail."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from penstock.pipeline.loader.worker_errors import LoaderTimeoutError, WorkerError
from tests.contracts.engine import check_engine
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader


@pytest.fixture
def workers():
    """Tells the children that a test has started; others may have left some of theirs."""
    before = multiprocessing.active_children()
    return lambda: [each for each in multiprocessing.active_children() if each not in before]


QUICK = {"engine": "torch", "num_workers": 2}


@pytest.mark.parametrize(
    "start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_torch_with_any_start_method(start_method):
    check_engine("torch", num_workers=2, multiprocessing_context=start_method)


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


def test_a_killed_worker_is_named_at_once():
    start = time.monotonic()
    settings = {**QUICK, "timeout_s": 200}
    with make_loader(FakeDataset(40, deadly=20), **settings) as loader:
        with pytest.raises(WorkerError, match=r"exited unexpectedly") as e:
            digests(loader)
        assert "memory" in str(e.value) and "\n" not in str(e.value)
        assert time.monotonic() - start < 200
        loader.dataset.deadly = None
        assert len(digests(loader)) == 5, "it starts again after a death"


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

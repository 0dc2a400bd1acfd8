"""How a loader ends that another thread closes, or that is forgotten."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from tests.pipeline.loader.fakes import FakeDataset, make_loader

ENGINES = {
    "inline": {"engine": "inline"},
    "threads": {"engine": "threads", "num_workers": 2},
    "processes": {"engine": "processes", "num_workers": 2},
    "default": {"engine": None, "num_workers": 2},
    "torch": {"engine": "torch", "num_workers": 1},
}


def penstock_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}


@pytest.mark.parametrize("engine", ENGINES)
def test_closed_while_another_thread_waits_for_a_batch(engine):
    before = penstock_threads()
    loader = make_loader(FakeDataset(400, slow_s=0.3), **ENGINES[engine])
    iterated, ended = threading.Event(), []

    def iterate():
        try:
            for _ in loader:
                iterated.set()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=iterate, daemon=True)
    with pytest.raises(LookupError, match="the real error"), loader:
        thread.start()
        assert iterated.wait(120)
        time.sleep(0.1)  # it is within the next batch
        raise LookupError("the real error")
    thread.join(120)
    assert not thread.is_alive()
    assert [isinstance(error, RuntimeError) for error in ended] == [True], ended
    deadline = time.monotonic() + 120
    while penstock_threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not penstock_threads() - before
    with loader:
        assert next(iter(loader))["position"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("engine", ["threads", "default"])
def test_a_forgotten_loader_ends_its_threads_at_once(engine):
    before = penstock_threads()
    gc.collect()
    gc.disable()
    try:
        loader = make_loader(FakeDataset(64), **ENGINES[engine])
        assert len(list(loader)) == 8 and penstock_threads() - before
        del loader
        assert not penstock_threads() - before
    finally:
        gc.enable()

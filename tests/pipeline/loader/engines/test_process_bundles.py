"""Bundles in processes: what dies or hangs amid them, and what becomes of their memory."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.pipeline.loader.digest import batch_digest
from penstock.pipeline.loader.engines import watched_pool
from penstock.pipeline.loader.engines.worker_process import WorkerProcess
from tests.pipeline.loader.bundled import ALONE, PROCESS, Arrays, N, dataset
from tests.pipeline.loader.fakes import kill_worker, make_loader, the_pool


def test_processes_are_given_bundles(arrays_folder, monkeypatch):
    sent = []
    send = WorkerProcess.send

    def counted(self, job):
        sent.append(len(job.bundle))
        send(self, job)

    monkeypatch.setattr(WorkerProcess, "send", counted)
    ways = {**PROCESS, "num_workers": 1, "across_epochs": False, "batch_size": 1}
    with make_loader(dataset(Arrays(arrays_folder)), **ways) as loader:
        assert len(list(loader)) == N
    grown = sent[sent.index(2) :]
    assert set(sent[: -len(grown)]) == {1}
    assert grown[:3] == [2, 4, 8] and set(grown[3:-1]) == {16}


@pytest.mark.parametrize("hangs", [False, True], ids=["kills", "hangs"])
def test_a_position_that_kills_is_found_in_its_bundle_and_no_other_is_held(
    arrays_folder, monkeypatch, hangs
):
    examined = []
    find = watched_pool.find_killers
    monkeypatch.setattr(
        watched_pool, "find_killers", lambda task, by: examined.append(task) or find(task, by)
    )
    with make_loader(dataset(Arrays(arrays_folder)), batch_size=5, **ALONE) as loader:
        loader.load_state_dict({**loader.state_dict(), "quarantined": [[0, 152]]})
        expected = [batch_digest(batch) for batch in loader]
    ways = {**PROCESS, "across_epochs": False, "max_error_rate": 1.0}
    ways["timeout_s"] = 1 if hangs else 90
    storage = Arrays(arrays_folder, deadly=152, hangs=hangs)
    with make_loader(dataset(storage), batch_size=5, **ways) as loader:
        assert [batch_digest(batch) for batch in loader] == expected
        assert loader.state_dict()["quarantined"] == [[0, 152]]
        assert loader.stats.bad_samples == 1
    assert [task.number for task in examined if 152 in task.positions] == [30]
    # The batch and what else its process was at; where each try costs a deadline, the bundle.
    assert (len(examined) > 2) == hangs


def test_a_process_that_dies_amid_bundles_changes_nothing(arrays_folder):
    expected = [batch_digest(b) for b in make_loader(dataset(Arrays(arrays_folder)), **ALONE)]
    before = _slots()  # what other tests of this process have not let go
    ways = {**PROCESS, "processes": 2, "batch_size": 8}
    with make_loader(dataset(Arrays(arrays_folder)), **ways) as loader:
        found, killed = [], []
        for batch in loader:
            found.append(batch_digest(batch))
            if len(found) in (5, 20):
                killed.append(kill_worker(loader, 0, spared=killed))
        assert found == expected
        assert not loader.state_dict()["quarantined"]
        del batch
    gc.collect()
    assert not _slots() - before, "slots are lost"


def _slots() -> set[int]:
    """The memory of batches that this process holds, by inode."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if "memfd:penstock" in os.readlink(entry):
                found.add(entry.stat().st_ino)
    return found


def test_what_is_left_of_a_bundle_is_let_go(arrays_folder):
    with make_loader(dataset(Arrays(arrays_folder)), batch_size=2, **PROCESS) as loader:
        iterator = iter(loader)
        for _ in range(40):
            next(iterator)
        leased = the_pool(loader)._slots._leased
        assert leased
        iterator.close()
        until = time.monotonic() + 30
        while any(view() is not None for view, _ in list(leased.values())):
            # The thread that delivers may be amid the next bundle, which it leaves aside.
            assert time.monotonic() < until, "memory is kept that nobody views"
            time.sleep(0.01)
            gc.collect()

"""Worker processes: needs, failures and ends."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys

import pytest

from penstock.core import processes
from penstock.core.user_errors import is_explained
from penstock.pipeline.loader import arena
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.pipeline.loader.executors.deadly import (
    RECORD,
    DeadlyCollate,
    DeadlyDataset,
    N,
    expected,
    position_of,
    sampler,
)
from tests.pipeline.loader.fakes import (
    FakeDataset,
    FakeStream,
    digest,
    digests,
    make_loader,
    pids_of,
    the_pool,
)
from tests.waiting import wait_until

PROCESSES = {"engine": "processes", "num_workers": 2}


@pytest.mark.parametrize(
    ("how", "timeout_s"), [("kill", 90), ("segfault", 90), ("hang", 4), ("stop", 4)]
)
def test_a_record_that_ends_its_process_is_quarantined(
    how, timeout_s, tmp_path, caplog, capfd, monkeypatch
):
    monkeypatch.setattr(processes, "START_S", 20.0)
    witness = tmp_path / "witness"
    settings = {**PROCESSES, "timeout_s": timeout_s}
    with (
        caplog.at_level(logging.WARNING),
        make_loader(DeadlyDataset(how, witness), sampler(), **settings) as loader,
    ):
        assert digests(loader) == expected()
        assert loader.state_dict()["quarantined"] == [RECORD]
        assert loader.stats.bad_samples == 1, "its neighbours are good"
        assert loader.stats.workers().restarts == 4
        assert str(loader.stats).endswith("workers: 4 replaced, which died or hung")
    assert f"'img/{RECORD:07d}.jpg' at position {position_of(RECORD)}" in caplog.text
    lines = set(witness.read_text().splitlines())
    assert len(lines) == 4, "once in the run, three times alone"


def test_a_record_that_is_slow_on_a_busy_machine_is_not_quarantined(tmp_path):
    dataset = DeadlyDataset("busy", tmp_path / "witness")
    with make_loader(dataset, sampler(), timeout_s=2, **PROCESSES) as loader:
        assert digests(loader) == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []


def test_a_batch_with_a_quarantined_record_and_another_that_kills():
    with make_loader(DeadlyDataset("kill", deadly=RECORD + 1), **PROCESSES) as loader:
        loader.load_state_dict(loader.state_dict() | {"quarantined": [RECORD]})
        assert len([*loader]) == -(-N // 8)
        assert loader.state_dict()["quarantined"] == [RECORD, RECORD + 1]


def test_each_batch_of_a_worker_has_its_own_time():
    settings = {**PROCESSES, "num_workers": 1, "timeout_s": 4}
    with make_loader(FakeDataset(16, slow_s=2.5), **settings) as loader:
        assert len([*loader]) == 2
        assert loader.stats.workers().restarts == 0


class DeadlyItem(FakeStream):
    """A stream with an item that ends workers."""

    consumer: int
    deadly = 0

    def fetch_items(self, items, positions, epoch, **memory):
        if self.deadly in items:
            assert os.getpid() != self.consumer, "the consumer's process would have ended"
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fetch_items(items, positions, epoch, **memory)


def test_the_consumer_does_not_compute_the_item_that_ended_its_workers():
    settings = {**PROCESSES, "batch_size": 1, "max_error_rate": 1}
    stream = DeadlyItem(3)
    stream.consumer = os.getpid()  # travels to the workers
    with make_loader(stream, **settings) as loader:
        rows = [(batch["index"].tolist(), batch["valid"].tolist()) for batch in loader]
        assert rows == [([1], [False]), ([1], [True]), ([2], [True])]
        assert loader.state_dict()["quarantined"] == [[0, 0]]


def test_a_batch_is_filled_without_computing_a_deadly_item_in_the_consumer():
    stream = DeadlyItem(3, bad=[0])
    stream.consumer, stream.deadly = os.getpid(), 1
    with make_loader(stream, **PROCESSES, batch_size=1, max_error_rate=1) as loader:
        rows = [(batch["index"].tolist(), batch["valid"].tolist()) for batch in loader]
        assert rows == [([2], [False]), ([2], [False]), ([2], [True])]


def test_workers_are_started_before_the_first_iteration():
    with make_loader(FakeDataset(N), sampler(), **PROCESSES) as loader:
        loader.start()
        wait_until(lambda: len(pids := pids_of(loader)) == 2 and all(pids))
        pids = pids_of(loader)
        assert digests(loader) == expected(quarantined=False)
        assert pids_of(loader) == pids


def test_a_record_that_wants_too_much_memory_is_not_quarantined():
    with make_loader(DeadlyDataset("memory"), sampler(), **PROCESSES) as loader:
        with pytest.raises(MemoryError, match=r"MemoryError.*lower loader.num_workers"):
            digests(loader)
        assert not loader.state_dict()["quarantined"]


def test_a_batch_whose_rows_are_all_fine_ends_the_run():
    with make_loader(FakeDataset(N), sampler(), collate=DeadlyCollate(), **PROCESSES) as loader:
        with pytest.raises(WorkerError, match="no record of the batch does it alone") as caught:
            digests(loader)
        assert is_explained(caught.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_ended_from_outside(number):
    settings = {**PROCESSES, "timeout_s": 4}
    with make_loader(FakeDataset(N, slow_s=0.02), sampler(), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at in (1, 4):
                os.kill(pids_of(loader)[at % 2], number)
        assert got == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []


def _free_slots(loader):
    gc.collect()
    memory = the_pool(loader).arena
    slots = [*iter(memory.take, None)]
    for slot in slots:
        memory.give_back(slot)
    return len(slots)


def test_the_slots_of_abandoned_batches_and_dead_workers_come_back():
    settings = {**PROCESSES, "across_epochs": False}
    with make_loader(FakeDataset(N, slow_s=0.02), sampler(), **settings) as loader:
        for _ in range(3):
            next(iter(loader))
        os.kill(pids_of(loader)[0], signal.SIGKILL)
        assert digests(loader) == expected(quarantined=False)
        wait_until(lambda: _free_slots(loader) == arena.slots_of(loader.settings))


def test_kept_batches_travel_by_themselves_where_the_arena_is_full():
    with make_loader(FakeDataset(N), batch_size=1, **PROCESSES) as loader:
        kept = list(loader)
        assert [digest(batch) for batch in kept] == digests(
            make_loader(FakeDataset(N), batch_size=1)
        )


@pytest.mark.parametrize("fails", [False, True])
def test_a_machine_without_memfd(monkeypatch, fails):
    def none(name):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(arena.os, "memfd_create", none) if fails else monkeypatch.delattr(
        arena.os, "memfd_create"
    )
    with make_loader(FakeDataset(N), **PROCESSES) as loader:
        assert digests(loader) == digests(make_loader(FakeDataset(N)))


class _Ragged(FakeDataset):
    def _one(self, index, position, epoch):
        self.size = 4 + 400 * (position // 8 % 3)
        return super()._one(index, position, epoch)


def test_batches_of_differing_sizes():
    with make_loader(_Ragged(N), **PROCESSES) as loader:
        assert digests(loader) == digests(make_loader(_Ragged(N)))


class _Unloadable(FakeDataset):
    def __setstate__(self, state):
        raise LookupError("no such thing here")


def test_a_recipe_that_does_not_load_is_told_as_it_is():
    with make_loader(_Unloadable(N), **PROCESSES) as loader:
        with pytest.raises(LookupError, match="no such thing here"):
            next(iter(loader))


DEFINES = """
from tests.pipeline.loader.fakes import FakeDataset, make_loader

class Own(FakeDataset):
    def fetch(self, indices, positions, epoch):
        return super().fetch(indices, positions, epoch)

for engine in ("processes", "torch"):
    with make_loader(Own(40), engine=engine, num_workers=2) as loader:
        print(len(list(loader)), loader.stats.workers().restarts)
"""


@pytest.mark.parametrize("way", ["script", "command", "stdin"])
def test_programs_need_no_guard_even_if_they_define_components(tmp_path, way):
    (tmp_path / "script.py").write_text(DEFINES)
    command = {"script": [str(tmp_path / "script.py")], "command": ["-c", DEFINES], "stdin": ["-"]}
    done = subprocess.run(
        [sys.executable, *command[way]],
        input=DEFINES if way == "stdin" else "",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.stdout, done.stderr) == ("5 0\n5 0\n", "")


OWN_STEP = """
from penstock import build_loader, compose, register

@register("transform", "mine")
def mine(sample, rng):
    return sample

given = ["dataset=image_folder", "transform=mine", "loader=processes", "loader.num_workers=1"]
next(iter(build_loader(compose(given), split="train")))
"""


def test_a_component_of_the_program_itself_is_refused_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OWN_STEP], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    *_, said = done.stderr.splitlines()
    assert done.returncode == 1 and "transform/mine" in said and "imports=[" in said

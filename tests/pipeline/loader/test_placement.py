"""Where workers run: chosen on made-up machines, and told by the kernel of real workers."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from penstock.pipeline.loader.placement import (
    Machine,
    cores_text,
    near_cores,
    parse_cores,
    read_machine,
)
from penstock.pipeline.loader.settings import LoaderSettings
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader
from tests.waiting import wait_until

LAST = max(os.sched_getaffinity(0))


def cores(text):
    return parse_cores(text)


def chosen(machine, allowed, ranks):
    return [
        near_cores(machine, {*cores(allowed)}, local_rank=rank, local_ranks=ranks)
        for rank in range(ranks)
    ]


SOCKETS = {0: cores("0-31,64-95"), 1: cores("32-63,96-127")}  # hyperthreads behind the cores
EIGHT = Machine(SOCKETS, (0, 0, 0, 0, 1, 1, 1, 1))


def test_each_rank_has_the_node_of_its_gpu_with_both_threads_of_its_cores():
    found = chosen(EIGHT, "0-127", 8)
    assert [where for where, _ in found] == [SOCKETS[0]] * 4 + [SOCKETS[1]] * 4
    assert found[5][1] == "workers on the 64 cores of NUMA node 1, where the GPU is"
    crossed = chosen(Machine(SOCKETS, (1, 0)), "0-127", 2)
    assert [where for where, _ in crossed] == [SOCKETS[1], SOCKETS[0]]


def test_a_container_has_of_a_node_what_it_may_use():
    found = chosen(EIGHT, "28-35,92-99", 8)
    assert {where for where, _ in found[:4]} == {cores("28-31,92-95")}
    assert {where for where, _ in found[4:]} == {cores("32-35,96-99")}


@pytest.mark.parametrize(("allowed", "ranks"), [("0-14", 4), ("0-14", 2), ("1-15", 4)])
def test_an_odd_core_unbinds_nobody(allowed, ranks):
    machine = Machine({0: cores("0-7"), 1: cores("8-15")}, (0, 0, 1, 1)[:: 4 // ranks])
    assert all(where for where, _ in chosen(machine, allowed, ranks))


@pytest.mark.parametrize(
    ("machine", "allowed", "ranks", "why"),
    [
        (EIGHT, "0-127", 1, "one rank has the machine to itself"),
        (Machine({0: cores("0-63")}, (0, 0)), "0-63", 2, "all cores are of one NUMA node"),
        (EIGHT, "3-17", 8, "all cores are of one NUMA node"),
        (Machine(SOCKETS), "0-127", 2, "nobody says which node rank 0's GPU is at"),
        (Machine(SOCKETS, (-1, -1)), "0-127", 2, "nobody says which node rank 0's GPU is at"),
        (Machine(SOCKETS, (0,)), "0-127", 2, "nobody says which node rank 0's GPU is at"),
        (
            Machine(SOCKETS, (0, 0, 0, 0)), "0-127", 4,
            "NUMA node 0 has 16 cores for each of its 4 ranks, an even share of all is 32",
        ),
        (
            EIGHT, "0,32-63", 8,
            "NUMA node 0 has 0 cores for each of its 4 ranks, an even share of all is 4",
        ),
    ],
)  # fmt: skip
def test_nobody_is_bound_where_it_gains_nothing_or_costs_cores(machine, allowed, ranks, why):
    where, said = chosen(machine, allowed, ranks)[0]
    assert where is None and said == f"workers stay unbound: {why}"


def test_bound_ranks_have_at_least_an_even_share():
    for split in range(1, 9):
        machine = Machine(SOCKETS, (0,) * split + (1,) * (8 - split))
        for rank, (where, _) in enumerate(chosen(machine, "0-127", 8)):
            sharing = machine.gpu_nodes.count(machine.gpu_nodes[rank])
            assert where is None or len(where) / sharing >= 16


def test_the_kernels_lists_are_read_and_written():
    assert parse_cores("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11} and parse_cores("\n") == set()
    assert cores_text({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"


def test_nodes_and_gpus_are_read_from_sysfs(tmp_path, monkeypatch):
    for node, text in enumerate(("0-3\n", "4-7\n", "\n")):  # the last one has memory alone
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text)
    for address, node in (("0000:3b:00.0", 1), ("0001:af:00.0", 0)):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(
        "penstock.pipeline.loader.placement._gpu_addresses",
        lambda: ["0000:3b:00.0", "0001:af:00.0", "0000:99:00.0"],
    )
    machine = read_machine(3, tmp_path)
    assert machine == Machine({0: cores("0-3"), 1: cores("4-7"), 2: frozenset()}, (1, 0, -1))
    assert read_machine(1, tmp_path).gpu_nodes == (), "nobody asks for GPUs of one rank"
    here = read_machine(2).nodes
    assert os.sched_getaffinity(0) <= frozenset().union(*here.values())


def where(task):
    """The cores and the priority of a thread, or of a process's first one."""
    return os.sched_getaffinity(task), os.getpriority(os.PRIO_PROCESS, task)


def _processes_at(place):
    """The processes below this one that run there with all their threads."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it ended meanwhile
            tasks = map(int, os.listdir(f"/proc/{each.pid}/task"))
            found += [each.pid] * all(where(task) == place for task in tasks)
    return found


def _threads_at(place):
    """The names of the threads that run there."""
    found = []
    for thread in threading.enumerate():
        with suppress(OSError, TypeError):  # it ended meanwhile, or begins
            found += [thread.name] * (where(thread.native_id) == place)
    return sorted(found)


@pytest.fixture
def at_fork(monkeypatch):
    """A library begins a thread in what is forked, as some do."""
    monkeypatch.setattr(sys.modules[__name__], "_begins", True)


_begins = False


def _begin_thread():
    if _begins:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


os.register_at_fork(after_in_child=_begin_thread)


@pytest.mark.usefixtures("at_fork")
@pytest.mark.parametrize("engine", ["processes", "torch"])
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_worker_processes_run_where_they_are_told(engine, start):
    before, settings = where(0), {"multiprocessing_context": start, "num_workers": 2}
    with make_loader(FakeDataset(64), engine=engine, affinity=[LAST], nice=5, **settings) as loader:
        got = digests(loader)
        place = {LAST}, before[1] + 5
        # The second may start when all is done, and move its threads one by one.
        wait_until(lambda: len(_processes_at(place)) == 2)
    assert where(0) == before, "the trainer is left alone"
    assert got == digests(make_loader(FakeDataset(64)))


def test_threads_run_where_they_are_told_and_nothing_else_does():
    before = where(0)
    with make_loader(
        FakeDataset(64), engine="threads", num_workers=2, affinity=[LAST], nice=5
    ) as loader:
        digests(loader)
        place = {LAST}, before[1] + 5  # where one of them may come when all is done
        wait_until(lambda: _threads_at(place) == ["penstock-0", "penstock-1"])
    assert where(0) == before


def test_by_default_nothing_is_touched(monkeypatch):
    def touched(*_):
        raise AssertionError("somebody was moved")

    monkeypatch.setattr(os, "sched_setaffinity", touched)
    monkeypatch.setattr(os, "nice", touched)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    for affinity in ("none", "auto"):
        with make_loader(
            FakeDataset(64), engine="threads", num_workers=2, affinity=affinity
        ) as loader:
            assert len(digests(loader)) == 8
    assert LoaderSettings().affinity == "none" and LoaderSettings().nice == 0


def test_cores_that_this_process_may_not_use_are_refused():
    allowed = cores_text(os.sched_getaffinity(0))
    with pytest.raises(ValueError) as told:
        LoaderSettings(affinity=[4097, LAST])
    assert str(told.value) == (
        f"loader.affinity: core 4097 given, this process may use {allowed}; type "
        f"'loader.affinity=[{LAST}]'"
    )
    with pytest.raises(ValueError, match=r"type loader\.affinity=none$"):
        LoaderSettings(affinity=[4097])
    with pytest.raises(ValueError, match=r"type loader\.affinity=none loader\.nice=0"):
        LoaderSettings(engine="ray", nice=3)
    for wrong in ([], [-1], "all"):
        with pytest.raises(ValueError, match=r"loader\.affinity is "):
            LoaderSettings(affinity=wrong)
    with pytest.raises(ValueError, match=r"loader\.nice is 20: .* less than or equal to 19"):
        LoaderSettings(nice=20)

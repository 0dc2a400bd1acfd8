"""Worker processes: what they need, how they fail, and what they leave behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

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
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool
from tests.pipeline.loader.programs import assert_gone, family_at_work, start_program
from tests.waiting import wait_until

PROCESSES = {"engine": "processes", "num_workers": 2}


@pytest.mark.parametrize(
    ("how", "timeout_s"), [("kill", 90), ("segfault", 90), ("hang", 4), ("stop", 4)]
)
def test_a_record_that_ends_its_process_is_quarantined(how, timeout_s, tmp_path, caplog, capfd):
    witness = tmp_path / "witness"
    settings = {**PROCESSES, "timeout_s": timeout_s}
    with (
        caplog.at_level(logging.WARNING),
        make_loader(DeadlyDataset(how, witness), sampler(), **settings) as loader,
    ):
        assert digests(loader) == expected()
        assert loader.state_dict()["quarantined"] == [RECORD]
        assert loader.stats.bad_samples == 1, "its neighbours are good"
        assert loader.stats.as_dict()["restarts"] == 1, "probes are not counted"
        assert str(loader.stats).endswith("workers: 1 replaced, which died or hung")
    assert f"'img/{RECORD:07d}.jpg' at position {position_of(RECORD)}" in caplog.text
    lines = set(witness.read_text().splitlines())
    assert len(lines) == 3, "once in the run, twice alone"


def test_a_quarantined_record_stays_out_of_the_run_and_of_its_checkpoints(caplog):
    with make_loader(DeadlyDataset("kill"), sampler(), **PROCESSES) as loader:
        assert digests(loader, epochs=2) == expected(epochs=2)
        state = loader.state_dict()
    assert state["quarantined"] == [RECORD]
    with make_loader(DeadlyDataset("kill"), sampler(), **PROCESSES) as loader:
        caplog.clear()
        loader.load_state_dict(state | {"epoch": 0, "next_batch": 0, "finished": False})
        assert digests(loader) == expected()
        assert "it is replaced" not in caplog.text


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
                os.kill(the_pool(loader).pids[at % 2], number)
        assert got == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []


@pytest.mark.slow
def test_two_hundred_kills_change_no_batch():
    draw, kills, count = random.Random(0), 0, 6_000
    wanted = digests(make_loader(FakeDataset(count)))
    got = []
    with make_loader(FakeDataset(count, slow_s=0.01), **PROCESSES) as loader:
        while kills < 200:
            for number, batch in enumerate(loader):
                if loader.epoch == 0:
                    got.append(digest(batch))
                if number % 3 == 0:
                    with suppress(ProcessLookupError, IndexError):
                        os.kill(draw.choice(the_pool(loader).pids), signal.SIGKILL)
                        kills += 1
        assert loader.state_dict()["quarantined"] == []
    assert got == wanted


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


class _Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def test_a_data_set_that_does_not_pickle_is_told():
    with make_loader(_Locked(N), **PROCESSES) as loader:
        with pytest.raises(ValueError, match=r"cannot be sent to processes.*engine=threads"):
            next(iter(loader))


DEFINES = """
from tests.pipeline.loader.fakes import FakeDataset, make_loader

class Own(FakeDataset):
    def fetch(self, indices, positions, epoch):
        return super().fetch(indices, positions, epoch)

with make_loader(Own(40), engine="processes", num_workers=2) as loader:
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
    assert (done.stdout, done.stderr) == ("5 0\n", "")


SCRIPT = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader

loader = make_loader(FakeDataset(4000, slow_s=0.05), engine=sys.argv[1], num_workers=2)
try:
    for number, batch in enumerate(loader):
        print(number, flush=True)
        if sys.argv[2] == "exit" and number == 2:
            sys.exit(0)
        if sys.argv[2] == "raise" and number == 2:
            raise LookupError("on purpose")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c(tmp_path):
    process = start_program(tmp_path, SCRIPT, "processes", "never")
    family = family_at_work(process)
    assert len(family) == 2
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=250)
    assert out.endswith("interrupted\n") and (process.returncode, err) == (0, "")
    assert_gone(family)


def test_the_main_process_is_killed(tmp_path):
    process = start_program(tmp_path, SCRIPT, "processes", "never")
    family = family_at_work(process)
    process.kill()
    assert_gone(family)
    process.communicate(timeout=250)


@pytest.mark.parametrize(("engine", "end"), [("processes", "exit"), ("threads", "raise")])
def test_the_main_process_ends_without_closing(tmp_path, engine, end):
    process = start_program(tmp_path, SCRIPT, engine, end)
    family = family_at_work(process)
    _, err = process.communicate(timeout=250)
    assert process.returncode == (1 if end == "raise" else 0)
    assert ("LookupError: on purpose" in err) == (end == "raise")
    assert "Fatal" not in err
    assert_gone(family)


def test_processes_end_with_their_loader_and_start_again():
    with make_loader(FakeDataset(N), **PROCESSES) as loader:
        digests(loader)
        family = [psutil.Process(pid) for pid in the_pool(loader).pids]
        assert len(family) == 2
    assert_gone(family)
    assert digests(loader) == digests(make_loader(FakeDataset(N)), 2)[-8:]
    loader.close()


def test_broken_off_iterations_leave_no_slot_taken():
    with make_loader(FakeDataset(80), **PROCESSES, across_epochs=False) as loader:
        for _ in range(20):
            batches = iter(loader)
            next(batches)
            batches.close()
        digests(loader)
        pool = the_pool(loader)
        wait_until(lambda: not any(w.jobs for w in pool._workers), "jobs are left")
        assert pool._arena._made <= 2 * 3 + 3


def test_workers_are_replaced_after_the_last_batch_too():
    with make_loader(FakeDataset(N), **PROCESSES) as loader:
        digests(loader)
        os.kill(the_pool(loader).pids[0], signal.SIGKILL)
        start = time.monotonic()
        assert digests(loader) == digests(make_loader(FakeDataset(N)), 2)[-8:]
        assert time.monotonic() - start < 60


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

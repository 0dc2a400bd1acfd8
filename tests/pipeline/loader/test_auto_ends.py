"""The auto engine leaves nothing behind, also when it ends in the middle of a change."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from penstock.pipeline.loader.engines import worker
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.pipeline.loader.engines.deadly import (
    RECORD,
    N,
    expected,
    position_of,
    sampler,
)
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader
from tests.pipeline.loader.programs import start_program
from tests.pipeline.loader.trying import EACH, FEW, let_try

SCRIPT = """
import sys
from tests.pipeline.loader.fakes import FakeDataset, make_loader
from tests.pipeline.loader.trying import EACH, FEW, let_try

def reached(moment, pools):
    if moment == "starting":
        return FEW in pools and not pools[FEW].is_ready
    return EACH in pools and pools[EACH].is_ready

if __name__ == "__main__":
    moment, end = sys.argv[1:]
    loader = make_loader(FakeDataset(4000, slow_s=0.02), engine="auto", num_workers=2)
    let_try(loader, FEW, EACH)
    said = False
    try:
        while True:
            for batch in loader:
                if not said and reached(moment, loader._engine.pools):
                    said = True
                    print("now", flush=True)
                    if end == "exit":
                        sys.exit(0)
                    if end == "raise":
                        raise LookupError("on purpose")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def _assert_session_is_gone(session: int, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := _running(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def _running(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "trial"])
@pytest.mark.parametrize("end", ["exit", "raise", "ctrl-c", "kill"])
def test_nothing_is_left_however_the_main_process_ends(tmp_path, moment, end):
    process = start_program(tmp_path, SCRIPT, moment, end)
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    if end == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    if end == "kill":
        process.kill()
    if end != "kill":
        out, err = process.communicate(timeout=250)
        assert out == ("interrupted\n" if end == "ctrl-c" else "")
        assert ("LookupError: on purpose" in err) == (end == "raise")
        assert err == "" or end == "raise"
        assert process.returncode == (1 if end == "raise" else 0)
    _assert_session_is_gone(process.pid)
    process.communicate(timeout=250)


def _until_chosen(loader, layout):
    """Go through epochs until a layout computes alone."""
    end = time.monotonic() + 120
    while not (loader._engine.is_settled and list(loader._engine.pools) == [layout]):
        assert time.monotonic() < end
        list(loader)
        time.sleep(0.1)  # processes are being started, on the same cores
    loader.set_epoch(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_chosen_processes_that_are_ended_are_replaced(number):
    dataset = FakeDataset(N, slow_s=0.005)
    # For threads, too, which share the cores with processes that start.
    settings = {"engine": "auto", "num_workers": 2}
    settings["timeout_s"] = 5 if number == signal.SIGSTOP else 90
    with make_loader(dataset, sampler(), **settings) as loader:
        let_try(loader, FEW, EACH)
        _until_chosen(loader, EACH)
        loader.dataset.slow_s = 0.02
        iterator = iter(loader)
        next(iterator)
        os.kill(loader._engine.pools[EACH].pids[0], number)
        list(iterator)
        assert list(loader._engine.pools) == [EACH], "threads of this process do not step in"
        loader.set_epoch(0)
        assert digests(loader) == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == []


class _Armed(FakeDataset):
    """One record ends the worker process that computes it, once a file says so."""

    def __init__(self, arms: Path) -> None:
        super().__init__(N)
        self.arms, self.home = arms, os.getpid()

    def _one(self, index, position, epoch):
        if index == RECORD and os.getpid() != self.home and self.arms.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._one(index, position, epoch)


def test_a_record_that_ends_chosen_processes_is_quarantined(tmp_path):
    dataset = _Armed(tmp_path / "arms")
    with make_loader(dataset, sampler(), engine="auto", num_workers=2) as loader:
        let_try(loader, FEW)
        _until_chosen(loader, FEW)
        dataset.arms.touch()
        assert digests(loader) == expected()
        assert loader.state_dict()["quarantined"] == [[0, position_of(RECORD)]]


@pytest.fixture
def closed():
    """A loader that chose a process and was closed, which ended it."""
    settings = {"engine": "auto", "num_workers": 2, "multiprocessing_context": "fork"}
    with make_loader(FakeDataset(N), sampler(), **settings) as loader:
        let_try(loader, FEW)
        _until_chosen(loader, FEW)
        loader.close()
        yield loader


def test_what_steps_in_while_the_chosen_starts_again_is_ended(closed):
    _until_chosen(closed, FEW)
    assert digests(closed) == expected(quarantined=False)


def test_the_chosen_that_cannot_start_again_ends_the_run(closed, monkeypatch):
    monkeypatch.setattr(worker, "end_with_parent", lambda **options: os._exit(3))
    with pytest.raises(WorkerError, match="exit code 3"):
        _until_chosen(closed, FEW)


KILLED = """
import contextlib, json, os, random, signal, sys
from tests.pipeline.loader.fakes import FakeDataset, digest, make_loader
from tests.pipeline.loader.trying import EACH, FEW, let_try

def workers(loader):
    pools = dict(loader._engine.pools)
    return [pid for layout, pool in pools.items() if layout.processes for pid in pool.pids if pid]

if __name__ == "__main__":
    rng, found, kills = random.Random(int(sys.argv[1])), [], 0
    for _ in range(2):
        dataset = FakeDataset(1000, slow_s=0.04)
        with make_loader(dataset, engine="auto", num_workers=2) as loader:
            let_try(loader, FEW, EACH, least=30)
            for epoch in range(3):
                due = 0
                for number, batch in enumerate(loader):
                    found.append(digest(batch))
                    pids = workers(loader)
                    # A batch that ends two processes would be suspected.
                    if pids and number >= due:
                        due = number + rng.randrange(10, 30)
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rng.choice(pids), signal.SIGKILL)
                            kills += 1
    print(json.dumps([kills, found]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_workers_that_are_killed_again_and_again_change_nothing_and_leave_nothing(
    tmp_path, monkeypatch, seed
):
    """While layouts are tried, while they are changed, and when one is chosen."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    before = set(os.listdir("/dev/shm"))
    process = start_program(tmp_path, KILLED, seed)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    kills, found = json.loads(out)
    assert kills > 10
    assert found == 2 * digests(make_loader(FakeDataset(1000), engine="inline"), 3)
    said = [line for line in err.splitlines() if "it is replaced" not in line]
    assert "Traceback" not in err and said == []
    _assert_session_is_gone(process.pid)
    assert not set(os.listdir("/dev/shm")) - before
    assert os.listdir(tmp_path / "tmp") == []

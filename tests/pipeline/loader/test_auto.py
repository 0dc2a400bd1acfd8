"""The engine that chooses: the same batches whatever it tries, chooses, and when."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest
import torch

from penstock.core.contracts import DatasetCapabilities
from penstock.core.processes import usable_cores, why_no_processes
from penstock.pipeline.loader.engines.auto import AutoEngine, worth_trying
from penstock.pipeline.loader.engines.calibration import Look
from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.loader.worker_errors import describe_death
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.engine import check_engine
from tests.pipeline.loader.fakes import Collated, FakeDataset, Nothing, digest, digests, make_loader
from tests.pipeline.loader.trying import EACH, FEW, HERE, THREADS, let_try

ROOT = Path(__file__).resolve().parents[3]
N = 400


@pytest.fixture(autouse=True)
def _one_server(monkeypatch, request):
    """Importing for the fork server takes seconds: once is enough here."""
    if "server" not in request.node.name:
        monkeypatch.setattr(
            "penstock.pipeline.loader.engines.pool_engine.end_unused_server", lambda: None
        )


def _until_over(loader, deadline_s=120):
    """Epochs until the choice is made; each compared with the inline engine."""
    reference = make_loader(FakeDataset(N), RandomSampler(N), batch_size=5)
    seen = set()
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        expected = iter(digests(reference))
        for batch in loader:
            assert digest(batch) == next(expected)
            seen.update(loader._engine.pools)
        if loader._engine.is_settled:
            return seen
        time.sleep(0.1)  # processes are being started, on the same cores
    raise AssertionError("no choice was made")


def _auto(dataset=None, **settings):
    settings = {"engine": "auto", "num_workers": 2, "batch_size": 5, **settings}
    return make_loader(dataset or FakeDataset(N), RandomSampler(N), **settings)


@pytest.mark.parametrize("num_workers", [0, 1, 3, "auto"])
def test_the_batches_of_the_inline_engine(num_workers):
    check_engine("auto", num_workers=num_workers)


@pytest.mark.parametrize("kept", [FEW, EACH, HERE, THREADS])
def test_the_same_batches_while_all_is_tried_and_afterwards(kept, caplog):
    with _auto() as loader, caplog.at_level(logging.INFO):
        calibration = let_try(loader, FEW, HERE, EACH, prefers=kept)
        assert _until_over(loader) >= {THREADS, FEW, HERE, EACH}
        assert calibration.layout == kept
        assert list(loader._engine.pools) == [kept], "the others are ended"
        said = [line for line in caplog.messages if "computed by" in line]
        assert len(said) == 1 and said[0].startswith(f"loader: computed by {kept} (told to; ")
        assert loader.engine_choice in said[0]
        loader.set_epoch(0)
        again = digests(make_loader(FakeDataset(N), RandomSampler(N), batch_size=5))
        assert digests(loader) == again, "the choice holds"
        assert list(loader._engine.pools) == [kept]


def test_breaking_off_and_resuming_in_the_middle_of_a_change():
    expected = digests(make_loader(FakeDataset(N), RandomSampler(N), batch_size=5))
    for steps in (1, 4, 6, 7, 9, 12):
        with _auto() as loader, _auto() as other:
            for each in (loader, other):
                let_try(each, HERE, FEW)
            iterator = iter(loader)
            for _ in range(steps):
                next(iterator)
            state = loader.state_dict()
            assert digests(loader) == expected
            other.load_state_dict(state)
            assert digests(other) == expected[steps:]


class _Global(FakeDataset):
    capabilities = DatasetCapabilities(global_random=True)


def test_nothing_is_tried_where_there_is_nothing_to_choose():
    for settings, layout in (
        ({"num_workers": 0}, HERE),
        ({"processes": 0}, THREADS),
        ({"processes": 1}, FEW),
    ):
        engine = AutoEngine(Nothing(), LoaderSettings(**{"num_workers": 2, **settings}))
        assert engine.calibration.is_over and engine.calibration.layout == layout
        assert engine.choice == f"{layout} (as asked for)"
    with _auto(_Global(N)) as loader:
        assert loader._engine.calibration.layout == EACH
        next(iter(loader))
        assert list(loader._engine.pools) == [EACH]


def test_the_number_of_workers_is_honoured_and_torch_threads_are_left_alone():
    class SeesThreads(Collated):
        def __call__(self, samples):
            return super().__call__(samples) | {"threads": torch.tensor(torch.get_num_threads())}

    before, threads = torch.get_num_threads(), _pools()
    torch.set_num_threads(3)
    try:
        # By fork no processes are tried, as slow as this machine may be at the moment.
        fork = {"multiprocessing_context": "fork"}
        with _auto(num_workers=7, collate=SeesThreads(), **fork) as loader:
            assert {int(batch["threads"]) for batch in loader} == {3}
            assert len(_pools() - threads) == 7
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert LoaderSettings().workers == usable_cores()


@pytest.mark.parametrize(("num_workers", "expected"), [("auto", [HERE]), (2, [])])
def test_workers_that_were_asked_for_are_not_sent_home(num_workers, expected):
    batches_of_a_tenth_of_a_millisecond = Look(0.0, 1.9, 0.0001, 0.0001)
    settings = LoaderSettings(num_workers=num_workers)
    assert worth_trying(settings, batches_of_a_tenth_of_a_millisecond)[0] == expected


class _Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


class _EndsOnArrival(FakeDataset):
    def __setstate__(self, state):
        os._exit(3)


@pytest.mark.parametrize(
    ("dataset", "why"), [(_Locked, "cannot be sent to workers"), (_EndsOnArrival, "exit code 3")]
)
def test_processes_that_cannot_be_had_are_done_without(dataset, why):
    with _auto(dataset(N)) as loader:
        calibration = let_try(loader, FEW)
        _until_over(loader)
        assert calibration.layout == THREADS
        assert "1 process of 2 threads cannot be had: loader: " in loader.engine_choice
        assert why in loader.engine_choice


def test_processes_are_not_tried_where_their_start_would_do_harm(monkeypatch, tmp_path):
    assert why_no_processes("forkserver") is None
    assert "fork" in why_no_processes("fork")
    for text, harmless in (
        ("import x\nif __name__ == '__main__':\n    x.run()\n", True),
        ("import x\nx.run()\n", False),
        ("if __name__ != '__main__':\n    raise SystemExit\n", True),
        ("not python", False),
    ):
        main = tmp_path / "main.py"
        main.write_text(text)
        monkeypatch.setattr("sys.modules", {"__main__": type("M", (), {"__file__": str(main)})})
        assert (why_no_processes("spawn") is None) == harmless
        ended = type("Ended", (), dict(pid=1, exitcode=1, join=lambda *_, **__: None,
                                       is_alive=lambda _: False))()  # fmt: skip
        assert ("has no `if __name__" in describe_death([ended])) != harmless
    monkeypatch.undo()
    beside_a_step = Look(step_share=0.5, at_work=1, batch_cpu_s=1, batch_wall_s=1)
    settings = LoaderSettings(num_workers=2, multiprocessing_context="fork")
    found, why = worth_trying(settings, beside_a_step)
    assert not found and "a step runs beside them, but multiprocessing_context=fork" in why


def test_an_error_while_processes_are_tried_leaves_a_loader_that_goes_on():
    with _auto(FakeDataset(N, crash=200)) as loader:
        calibration = let_try(loader, FEW)
        for _ in range(60):
            with pytest.raises(KeyError, match="a user's mistake"):
                digests(loader)
            assert not loader._engine.pools
            if calibration.is_over:
                break
        loader.dataset.crash = None
        assert len(digests(loader)) == 80


def _pools() -> set[threading.Thread]:
    """Threads of loaders; those of a test before may still be ending."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}


def _shared_kb() -> int:
    """Shared memory that this process has mapped and touched."""
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssShmem")]
    return int(line.split()[1])


def _children() -> int:
    """Processes that this one has started, but for what removes leaked names at its end."""
    found = psutil.Process().children(recursive=True)
    return sum("resource_tracker" not in " ".join(child.cmdline()) for child in found)


def _descriptors() -> list[Path]:
    return [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


def check_that_all_is_given_back() -> None:
    """What the next test runs in a process of its own."""
    before = _pools()
    loader = _auto(FakeDataset(N, size=64))
    let_try(loader, FEW, prefers=THREADS)
    most, end = (0, 0), time.monotonic() + 120
    while not loader._engine.is_settled:
        assert time.monotonic() < end
        for _batch in loader:
            most = max(most, (_shared_kb(), _children()))
        time.sleep(0.1)  # processes are being started, on the same cores
    del _batch
    assert most > (0, 1), "the server and a worker, which wrote to shared memory"
    assert (_shared_kb(), _children()) == (0, 0), "all of that is given back"
    assert not [name for name in map(os.readlink, _descriptors()) if "memfd:penstock" in name]
    assert len(_pools() - before) == 2
    loader.close()
    assert not _pools() - before


def test_closing_gives_back_what_was_tried_and_the_server():
    """In a process where no other loader uses the server, which would then be kept."""
    code = (
        "from tests.pipeline.loader import test_auto as test; test.check_that_all_is_given_back()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=250, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_short_epochs_do_not_keep_what_is_tried_for_ever():
    with _auto() as loader:
        calibration = let_try(loader, FEW, EACH, prefers=THREADS, most_runs=3)
        for _ in range(3):
            assert not calibration.is_over
            for _ in islice(loader, 7):  # too few for all, however soon processes start
                pass
        assert calibration.is_over and calibration.layout == THREADS
        assert "its epochs are too short to try more" in loader.engine_choice
        assert list(loader._engine.pools) == [THREADS], "at once"


@pytest.mark.parametrize("at", ["start", "trial", "end"])
def test_a_loader_that_is_forgotten_ends_its_workers(at):
    before = _pools()
    loader = _auto()
    let_try(loader, FEW, least=10**9 if at == "trial" else 3)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    if at == "end":
        _until_over(loader)
    workers = [pid for pool in loader._engine.pools.values() for pid in getattr(pool, "pids", ())]
    del loader, iterator
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "penstock-watch":
            thread.join(120)
    assert not _pools() - before
    assert not any(map(psutil.pid_exists, workers))

"""A forked process: loaders start anew in it, and the parent's loaders are undisturbed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import warnings

import numpy as np
import psutil
import pytest

from penstock import build_loader, compose

ROWS, BATCH = 96, 8
PROCESSES = ("processes", "torch")
ENGINES = ("inline", "threads", "null", *PROCESSES)
SETTINGS = (
    "augment=as_is",
    "dataset.val_fraction=0",
    f"loader.batch_size={BATCH}",
    "loader.timeout_s=60",
)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    rows = np.arange(ROWS)
    np.save(folder / "image.npy", np.tile(rows.astype(np.uint8)[:, None, None, None], (1, 8, 8, 3)))
    np.save(folder / "label.npy", rows)
    return ("dataset=memmap", f"dataset.storage.path={folder}")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    for shard in range(4):
        numbers = range(shard, ROWS, 4)
        text = "".join(f'{{"text": "{n}", "label": {n}}}\n' for n in numbers)
        (folder / f"{shard}.jsonl").write_text(text)
    return (
        "dataset=stream",
        "dataset/source=jsonl",
        f"dataset.source.path={folder}/*.jsonl",
        "dataset.readers=2",
    )


def open_loader(data, engine, *settings):
    workers = "loader.num_workers=1" if engine in PROCESSES else "loader.num_workers=2"
    chosen = (f"loader.engine={engine}", workers)
    return build_loader(compose([*data, *SETTINGS, *chosen, *settings]), "train")


def rows_of(batch):
    """Labels and first pixels, which a test of the same epoch compares."""
    pixels = batch["image"].flatten(1).float().mean(1).tolist() if "image" in batch else []
    return batch["label"].tolist(), pixels


def epoch_of(loader):
    return [rows_of(batch) for batch in loader]


def in_fork(function, meanwhile=lambda: None):
    """Return what a function returns in a forked process, or the type and text of its error."""
    ours, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a process with threads is forked
        pid = os.fork()
    if not pid:
        try:
            try:
                theirs.send(function())
            except Exception as error:
                theirs.send((type(error).__name__, str(error)))
        finally:
            os._exit(0)
    theirs.close()
    meanwhile()
    assert ours.poll(120), "the forked process hangs"
    answer = ours.recv()
    assert os.waitpid(pid, 0)[1] == 0
    return answer


def workers_of(pid):
    """Processes that a process has started, and those that its fork server has."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fork_between_epochs_goes_on_with_the_next_epoch(arrays, engine):
    with open_loader(arrays, "inline") as loader:
        first, second = epoch_of(loader), epoch_of(loader)
    with open_loader(arrays, engine) as loader:
        assert epoch_of(loader) == first
        before = workers_of(os.getpid())

        def next_epoch():
            found = epoch_of(loader)
            loader.close()
            return found

        assert in_fork(next_epoch) == second
        assert workers_of(os.getpid()) >= before
        assert epoch_of(loader) == second


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fork_within_an_epoch_refuses_the_iterator_of_its_parent(arrays, engine, caplog):
    caplog.set_level(logging.WARNING)
    with open_loader(arrays, "inline") as loader:
        expected = epoch_of(loader)
    with open_loader(arrays, engine) as loader:
        iterator = iter(loader)
        given = [rows_of(next(iterator)) for _ in range(3)]

        def go_on():
            nonlocal iterator
            with pytest.raises(RuntimeError, match=str(os.getppid())):
                next(iterator)
            del iterator
            return epoch_of(loader) if engine == "threads" else None

        assert in_fork(go_on) == (expected if engine == "threads" else None)
        assert [*given, *map(rows_of, iterator)] == expected
    assert not caplog.records, "a worker of the parent was replaced"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fork_of_a_stream_with_readers_starts_anew(lines, workers):
    settings = (f"loader.num_workers={workers}", "dataset/decode=raw")
    with open_loader(lines, "threads", *settings) as loader:
        expected, second = epoch_of(loader), epoch_of(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        given = [rows_of(next(iterator))]

        def go_on():
            nonlocal iterator
            with pytest.raises(RuntimeError):
                next(iterator)
            del iterator
            found = epoch_of(loader), epoch_of(loader)
            loader.close()
            return found

        assert in_fork(go_on) == (expected, second)
        assert [*given, *map(rows_of, iterator)] == expected


def test_a_fork_keeps_the_batches_that_it_inherits(arrays):
    asked, tell = multiprocessing.Pipe(duplex=False)
    with open_loader(arrays, "processes", "loader.prefetch_factor=2") as loader:
        held = [next(iter(loader))]
        expected = rows_of(held[0])

        def look_later():
            asked.poll(120)
            return rows_of(held[0])

        def use_up():
            held.clear()
            for _ in range(3):
                epoch_of(loader)
            tell.send(None)

        assert in_fork(look_later, use_up) == expected


def test_a_fork_that_exits_in_full_leaves_the_workers_of_its_parent(arrays, tmp_path):
    program = f"""
import os, sys
import psutil
from penstock import build_loader, compose

if __name__ == "__main__":
    settings = {[*arrays, *SETTINGS, "loader.num_workers=1"]!r}
    loaders = [
        build_loader(compose([*settings, f"loader.engine={{engine}}"]), "train")
        for engine in ("processes", "torch")
    ]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    before = psutil.Process().children(recursive=True)
    if not (pid := os.fork()):
        for loader in loaders:
            loader.close()
        sys.exit(7)
    assert os.waitpid(pid, 0)[1] >> 8 == 7
    assert all(child.is_running() and child.status() != "zombie" for child in before)
    print([sum(1 for _ in iterator) for iterator in iterators])
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, f"{[ROWS // BATCH - 1] * 2}\n")
    # In the fork, multiprocessing tries to join the workers of torch's DataLoader.
    assert "penstock" not in done.stderr and done.stderr.count("Traceback") <= 1

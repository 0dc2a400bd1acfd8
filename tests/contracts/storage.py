"""Contract of a storage."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.contracts import Index, Storage
from penstock.core.sample import BadRecord, Record

Expected = tuple[str, dict[str, Any] | None]
"""Key and fields of a record; a bad record has None."""


def check_storage(
    make_storage: Callable[[], Storage],
    expected_records: Sequence[Expected],
    *,
    make_copy: Callable[[], Storage] | None = None,
    processes: Sequence[str] = ("forked", "new"),
) -> None:
    """Check a storage against its expected records.

    Args:
        make_storage: Makes the storage.
        expected_records: Key and fields of every record in order; None for a bad record.
        make_copy: Makes a storage of a copy of the data in another place.
        processes: Processes that read it: a fork of this one, a new one.
    """
    storage = make_storage()
    assert isinstance(storage, Storage)
    _check_records(storage, expected_records)
    _check_index(storage, expected_records)
    assert storage.fingerprint() == make_storage().fingerprint() == storage.index.fingerprint()
    if make_copy is not None:
        assert make_copy().fingerprint() == storage.fingerprint()
    assert " " in str(storage), "name and place"
    _check_pickling(storage, expected_records)
    _check_threads(storage, expected_records)
    for kind in processes:
        _check_process(make_storage(), expected_records, kind)


def check_forks_while_threads_read(storage: Storage, expected: Sequence[Any]) -> None:
    """Fork processes while threads read; all of them read the same records.

    Args:
        storage: A storage that has been read.
        expected: The `summary` of all its records.
    """
    stop, failed = threading.Event(), []

    def read_on() -> None:
        while not stop.is_set():
            if summary(read_all(storage)) != expected:
                failed.append(1)

    def in_child() -> None:
        os._exit(summary(storage.read(np.array([3]))) == [expected[3]])

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    processes = [multiprocessing.get_context("fork").Process(target=in_child) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    stop.set()
    for thread in threads:
        thread.join()
    assert [process.exitcode for process in processes] == [1] * 8
    assert not failed and summary(read_all(storage)) == expected


def read_all(storage: Any) -> list[Record | BadRecord]:
    """Return every record."""
    records: list[Record | BadRecord] = storage.read(np.arange(len(storage)))
    return records


def summary(records: Sequence[Record | BadRecord]) -> list[tuple[int, str, Any]]:
    """Return records in a form that compares and pickles."""
    return [
        (r.index, r.key, None if isinstance(r, BadRecord) else plain(r.fields)) for r in records
    ]


def contents(folder: Path) -> dict[str, str]:
    """Return hashes of all files below a folder, by name."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with arrays as (dtype, values) and NaN as text, so that they compare."""
    shown = {}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            value = value.dtype.str, value.tolist()
        shown[name] = "nan" if isinstance(value, float) and value != value else value
    return shown


def _wanted(expected: Sequence[Expected], indices: Sequence[int]) -> list[tuple[int, str, Any]]:
    return [
        (i, expected[i][0], None if (fields := expected[i][1]) is None else plain(fields))
        for i in indices
    ]


def _orders(n: int) -> list[list[int]]:
    shuffled = np.random.default_rng(0).permutation(n).tolist()
    return [[], list(range(n)), list(range(n))[::-1], shuffled, [n - 1, 0, n - 1, 0, 0]]


def _check_records(storage: Storage, expected: Sequence[Expected]) -> None:
    n = len(storage)
    assert n == len(expected) > 0
    for order in _orders(n):
        records = storage.read(np.array(order, np.int64))
        assert summary(records) == _wanted(expected, order)
        for record in records:
            if isinstance(record, BadRecord):
                assert record.cause and "\n" not in record.cause
    for outside in (n, -1, n + 1000):
        with pytest.raises(IndexError, match=str(outside)):
            storage.read(np.array([0, outside]))


def _check_index(storage: Storage, expected: Sequence[Expected]) -> None:
    index, n = storage.index, len(storage)
    assert isinstance(index, Index)
    assert len(index) == n
    assert index.keys(np.arange(n)) == [key for key, _ in expected]
    assert len(set(index.keys(np.arange(n)))) == n, "keys are unique"
    for name in index.columns:
        assert index.column(name).shape == (n,)
    with pytest.raises(KeyError, match="no column 'nonsense'"):
        index.column("nonsense")
    for i, (_, fields) in enumerate(expected):
        if fields is not None and "label" in fields:
            assert index.column("label")[i] == fields["label"]
            assert index.class_names is not None


def _check_pickling(storage: Storage, expected: Sequence[Expected]) -> None:
    order = list(range(len(expected)))
    for candidate in (storage, pickle.loads(pickle.dumps(storage))):
        copy = pickle.loads(pickle.dumps(candidate))
        assert str(copy) == str(storage)
        assert copy.fingerprint() == storage.fingerprint()
        assert summary(copy.read(np.array(order))) == _wanted(expected, order)
    assert len(pickle.dumps(storage)) < 20_000, "a storage pickles as a recipe"


def _check_threads(storage: Storage, expected: Sequence[Expected]) -> None:
    orders = [np.random.default_rng(i).permutation(len(expected)).tolist() for i in range(32)]
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda order: summary(storage.read(np.array(order))), orders)
        for order, answer in zip(orders, answers, strict=True):
            assert answer == _wanted(expected, order)


def _check_process(storage: Storage, expected: Sequence[Expected], kind: str) -> None:
    order = list(range(len(expected)))[::-1]
    wanted = _wanted(expected, order)
    storage.read(np.array(order, np.int64))  # open handles here must not harm a child
    read = _read_in_copy if kind == "forked" else _read_in_new_process
    assert read(storage, order) == wanted
    assert summary(storage.read(np.array(order))) == wanted, "the parent still reads"


def _read_in_copy(storage: Storage, order: list[int]) -> Any:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(storage, order, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(120), "no answer from a forked process"
        return ours.recv()
    finally:
        process.join(120)
        assert process.exitcode == 0


def _send(storage: Any, order: list[int], answer: Any) -> None:
    answer.send(summary(storage.read(np.array(order))))


@cache
def _new_process() -> Any:
    """Return a new process; all storages share it, because starting one takes seconds."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _read_in_new_process(storage: Storage, order: list[int]) -> Any:
    pickled = pickle.dumps((storage, order))
    return _new_process().submit(_read_pickled, sys.path, pickled).result(120)


def _read_pickled(path: list[str], pickled: bytes) -> Any:
    sys.path[:] = path  # the storage may be of a module of the tests
    storage, order = pickle.loads(pickled)
    return summary(storage.read(np.array(order)))

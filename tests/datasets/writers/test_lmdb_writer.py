"""LMDB as it is written in parts."""

from __future__ import annotations

import lmdb
import numpy as np
import pytest

from penstock.datasets.storages.lmdb import LmdbStorage, LmdbWriter
from penstock.datasets.storages.lmdb import writer as lmdb_packed
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import check_writer, contents, records_of


def small() -> LmdbWriter:
    writer = LmdbWriter()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


def test_transactions_and_maps_of_any_size_give_the_same_records(tmp_path, monkeypatch):
    source = records_of(frozenset(("files", "keys", "labels")), 60)
    write_storage(LmdbWriter(), tmp_path / "a", source)
    monkeypatch.setattr(lmdb_packed, "_TRANSACTION_BYTES", 10_000)
    monkeypatch.setattr(lmdb_packed, "_FIRST_MAP_BYTES", 1 << 16)
    write_storage(LmdbWriter(), tmp_path / "b", source)
    one, other = (LmdbStorage(str(tmp_path / name)).read(np.arange(60)) for name in "ab")
    assert one == other


@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_a_join_that_was_killed_in_a_part_goes_on_with_the_same_bytes(
    tmp_path, monkeypatch, killed_after
):
    monkeypatch.setattr(lmdb_packed, "_TRANSACTION_BYTES", 80_000)
    monkeypatch.setattr(lmdb_packed, "_FIRST_MAP_BYTES", 1 << 16)
    source = records_of(frozenset(("files", "keys", "labels")), 60)
    write_storage(LmdbWriter(), tmp_path / "whole", source)
    append, calls = lmdb_packed._append, []

    def dying(*arguments):
        if len(calls) == killed_after:
            raise KeyboardInterrupt
        calls.append(1)
        append(*arguments)

    class Killed(LmdbWriter):
        def join_part(self, folder, plan, summary):
            monkeypatch.setattr(lmdb_packed, "_append", dying)
            with pytest.raises(KeyboardInterrupt):
                super().join_part(folder, plan, summary)
            monkeypatch.setattr(lmdb_packed, "_append", append)
            super().join_part(folder, plan, summary)

    write_storage(Killed(), tmp_path / "killed", source)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    with lmdb.open(str(tmp_path / "killed"), readonly=True, lock=False) as env:
        assert env.stat()["entries"] == 60

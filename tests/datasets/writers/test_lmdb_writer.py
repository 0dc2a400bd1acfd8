"""LMDB as it is written in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from datasets.formats import lmdb_packed
from datasets.writers.lmdb import LmdbWriter
from datasets.writing import join, make_plan, write_part, write_storage
from tests.contracts.writer import check_writer, contents, records_of


def small() -> LmdbWriter:
    writer = LmdbWriter()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


@pytest.mark.parametrize("part_bytes", [1, 100_000])
def test_what_is_held_or_spooled_gives_the_same_bytes(tmp_path, part_bytes):
    source = records_of(frozenset(("files", "keys", "labels")), 60)
    for name, held in (("held", True), ("spooled", False)):
        writer = small()
        writer.part_bytes = part_bytes
        plan = make_plan(writer, source, held=held)
        (tmp_path / name).mkdir()
        summaries = []
        for part in plan.parts:
            found = write_part(writer, tmp_path / name, plan, part, source)
            assert (found.written.held is None) == bool(found.written.spooled)
            assert held == (found.written.held is not None) or part_bytes == 1
            summaries.append(replace(found, first=part.start))
            join(writer, tmp_path / name, plan, summaries[-1])
        writer.finish(tmp_path / name, plan, summaries)
    assert contents(tmp_path / "held") == contents(tmp_path / "spooled")


def test_a_join_that_was_killed_goes_on_with_the_same_bytes(tmp_path, monkeypatch):
    source = records_of(frozenset(("files", "keys", "labels")), 60)
    write_storage(small(), tmp_path / "whole", source)
    pages = lmdb_packed._pages

    def dying(*arguments):
        for n, piece in enumerate(pages(*arguments)):
            if n == 9:
                raise KeyboardInterrupt
            yield piece

    class Killed(LmdbWriter):
        def join_part(self, folder, plan, summary):
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(lmdb_packed, "_pages", dying)
                super().join_part(folder, plan, summary)
            super().join_part(folder, plan, summary)
            super().join_part(folder, plan, summary)  # noted as written, and not as joined

    killed = Killed()
    killed.part_records = small().part_records
    write_storage(killed, tmp_path / "killed", source)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")

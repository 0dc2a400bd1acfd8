"""Contract of a writer class, part by part; `contracts/packing.py` checks a whole form."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.contracts import Storage, Writer
from penstock.core.parts import PackPlan, PartSummary
from penstock.core.record_codec import record_checksum
from penstock.core.registry import components
from penstock.core.sample import Record
from penstock.datasets.writing import make_plan, write_part, write_storage
from tests.contracts.components import component
from tests.contracts.records import COUNT, KINDS, ListedRecords, records_of
from tests.contracts.storage import contents, summary


def holdable(writer: Any) -> frozenset[str]:
    """Return the kinds of records that a writer declares to hold."""
    unknown = writer.cannot_hold - set(KINDS)
    assert not unknown, f"cannot_hold has {unknown}, expected some of {', '.join(KINDS)}"
    return frozenset(KINDS) - writer.cannot_hold


def open_written(writer: Any, path: Path) -> Storage:
    """Return the storage of the files of a writer."""
    made: Storage = component("storage", name_of(writer))(str(path))
    return made


def name_of(writer: Any) -> str:
    """Return the registered name of a writer."""
    return next(known.name for known in components("writer") if known.target is type(writer))


def assert_equal_records(found: Storage, expected: Storage, *, rows: Any = None) -> None:
    """Check that keys, order, labels, classes and fields are equal; fields in any order."""
    rows = np.arange(len(expected)) if rows is None else np.asarray(rows)
    assert len(found) == len(rows)
    theirs = [_plain(r) for r in summary(expected.read(rows))]
    ours = [_plain(r) for r in summary(found.read(np.arange(len(rows))))]
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a[1:] == b[1:], f"record {n}"
    for a, b in zip(found.read(np.arange(len(rows))), expected.read(rows), strict=True):
        assert isinstance(a, Record) and isinstance(b, Record)
        assert record_checksum(a.fields, key="") == record_checksum(b.fields, key="")
    assert found.index.class_names == expected.index.class_names
    if "label" in expected.index.columns:
        assert found.index.column("label").tolist() == expected.index.column("label")[rows].tolist()


def _plain(record: tuple[int, str, Any]) -> tuple[int, str, str]:
    """Return a record with its fields as text, in which NaN is equal to itself."""
    number, key, fields = record
    return number, key, repr(sorted(fields.items()))


def check_writer(make_writer: Callable[[], Any], tmp_path: Path) -> None:
    """Check a writer: it gives back records, and refuses others.

    Args:
        make_writer: Makes a writer with parts of at most 5 records.
        tmp_path: An empty folder.
    """
    writer = make_writer()
    for method in ("begin", "write_part", "finish"):
        ours = inspect.signature(getattr(type(writer), method)).parameters
        assert list(ours) == list(inspect.signature(getattr(Writer, method)).parameters), method
    few = f"set part_records to 5 or less, so that there are several parts: {writer.part_records}"
    assert writer.part_records <= 5, few
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
    held = holdable(writer)
    source = records_of(held)
    try:
        write_storage(make_writer(), tmp_path / "whole", source)
    except ValueError as error:
        error.add_note(f"name what the format cannot hold in cannot_hold, of {', '.join(KINDS)}")
        raise
    assert_equal_records(open_written(writer, tmp_path / "whole"), source)
    names = [file.name for file in (tmp_path / "whole").rglob("*")]
    assert not [name for name in names if name.startswith(".")], "temporary files"
    _check_refusals(make_writer, held, tmp_path / "refused")
    _check_left_out(make_writer, held, tmp_path / "left out")
    _check_order(make_writer, source, tmp_path)


def _check_refusals(make_writer: Any, held: frozenset[str], folder: Path) -> None:
    for kind in sorted(make_writer().cannot_hold):
        with pytest.raises(ValueError) as error:
            write_storage(make_writer(), folder, records_of(held | {kind}))
        assert "\n" not in str(error.value), kind
        assert not folder.exists()


def _check_left_out(make_writer: Any, held: frozenset[str], folder: Path) -> None:
    """Check that unreadable records, single ones and a whole part, leave no hole."""
    listed = records_of(held, 3 * COUNT)
    listed.records = {
        key: None if i in (0, 4) or 5 <= i < 10 else fields
        for i, (key, fields) in enumerate(listed.records.items())
    }
    rows = [i for i, fields in enumerate(listed.records.values()) if fields is not None]
    writer = make_writer()
    plan = make_plan(writer, listed)
    folder.mkdir()
    writer.begin(folder, plan)
    writer.finish(folder, plan, _parts(writer, folder, plan, listed))
    assert_equal_records(open_written(writer, folder), listed, rows=rows)


def _check_order(make_writer: Any, source: ListedRecords, tmp_path: Path) -> None:
    """Check that parts in any order, written and finished twice, give the same bytes."""
    writer = make_writer()
    plan = make_plan(writer, source)
    assert len(plan.parts) > 1
    folder = tmp_path / "again"
    folder.mkdir()
    writer.begin(folder, plan)
    for part in plan.parts[::-1]:
        write_part(pickle.loads(pickle.dumps(writer)), folder, plan, part, source)
    make_writer().begin(folder, plan)  # another process continues
    summaries = _parts(make_writer(), folder, plan, source)
    for _ in range(2):
        make_writer().finish(folder, plan, summaries)
    assert contents(folder) == contents(tmp_path / "whole")


def _parts(writer: Any, folder: Path, plan: PackPlan, source: Storage) -> list[PartSummary]:
    return [write_part(writer, folder, plan, p, source, skip_bad=True) for p in plan.parts]

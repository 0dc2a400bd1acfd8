"""What every writer must do: one function that the test of each writer calls."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.contracts import Storage, Writer
from penstock.core.parts import KINDS, PackPlan, PartSummary
from penstock.core.record_codec import record_checksum
from penstock.core.registry import components, find
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.memory_index import MemoryIndex
from penstock.datasets.writing import join, make_plan, write_part, write_storage
from penstock.pipeline.config.discovery import load_builtin
from tests.contracts.killing import check_killed, packing_of
from tests.contracts.storage import summary
from tests.photographs import scene

COUNT = 23
_KILLS = 4
_ODD_KEYS = ("ü/ß.jpg", "a b", "日本.png", "x'y\"z", "-", "1e5", "tab\there", "a,b;c", "%s{0}")


class ListedRecords:
    """A storage of given fields by key, None for a bad record; it pickles with all of them."""

    def __init__(self, records: dict[str, dict[str, Any] | None], class_names: Any = None) -> None:
        self.records = records
        labels = [f["label"] for f in records.values() if f and "label" in f]
        columns = {"label": np.array(labels)} if len(labels) == len(records) else {}
        self.index = MemoryIndex(list(records), columns, class_names if labels else None)

    def __str__(self) -> str:
        return "listed records"

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: Any) -> list[Record | BadRecord]:
        items = list(self.records.items())
        return [
            BadRecord(i, items[i][0], "is gone")
            if items[i][1] is None
            else Record(i, items[i][0], dict(items[i][1]))
            for i in np.asarray(indices).tolist()
        ]

    def fingerprint(self) -> str:
        return self.index.fingerprint()


def records_of(kinds: frozenset[str], count: int = COUNT) -> ListedRecords:
    """Records that have all that `kinds` names, and nothing else of `KINDS`."""
    records: dict[str, dict[str, Any] | None] = {}
    names = ("cat", "dög", "a class, of its own")
    names = names if "classes" in kinds else tuple(sorted(names))
    if "numbered" in kinds and not {"order", "keys"} & kinds:
        count = min(count, 10)  # numbers that are in order as text too
    for i in range(count):
        key = str(i) if "numbered" in kinds else f"{names[i % 3]}/{i:03d}.jpg"
        if "keys" in kinds:
            key = f"class {i % 3}/{i:03d}.jpg"
        if "keys" in kinds and i < len(_ODD_KEYS):
            key = _ODD_KEYS[i]
        fields = _fields(i, kinds)
        if "missing" in kinds and i % 4 == 1:
            fields = {k: v for k, v in fields.items() if k in ("image", "label")}
        if "no image" in kinds and (i % 5 == 2 or not {"files", "pixels"} & kinds):
            fields.pop("image", None)
        records[key] = fields
    if "order" not in kinds:
        records = dict(sorted(records.items(), key=lambda item: item[0].encode()))
    return ListedRecords(records, names if "labels" in kinds else None)


def _fields(i: int, kinds: frozenset[str]) -> dict[str, Any]:
    random = np.random.default_rng(i)
    fields: dict[str, Any] = {}
    if "pixels" in kinds and (i % 2 or "files" not in kinds):
        fields["image"] = scene(5 + i, 4 + i % 3, i)
    elif "files" in kinds:
        fields["image"] = random.bytes([0, 1, 700, 3000, 70_000][i % 5])
    elif "no image" not in kinds:
        fields["image"] = scene(8, 6, i)
    if "labels" in kinds:
        fields["label"] = i % 3
    if "arrays" in kinds:
        for code in ("u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "?"):
            name = {"?": "bool"}.get(code, code)
            fields[f"of_{name}"] = (random.random((2, 3)) * 50).astype(code)
        fields["mask"] = random.integers(0, 9, (4, 5)).astype(np.int32)
        fields["features"] = random.random(7).astype(np.float32)
        fields["features"][0] = np.nan
    if "shapes" in kinds:
        fields["boxes"] = random.random((i % 3, 4)).astype(np.float32)
        fields["box_labels"] = np.arange(i % 3, dtype=np.int64)
        fields["keypoints"] = random.random((i % 4, 3)).astype(np.float32)
        fields["tokens"] = np.arange(i % 7, dtype=np.int64)
        fields["array"] = random.random((2, 1 + i % 2, 3))
    if "bytes" in kinds:
        fields["extra"] = random.bytes([0, 1, 300][i % 3])
    if "numbers" in kinds:
        fields |= {"score": i / 7, "number": i * 10**9, "is_good": i % 2 == 0}
    if "values" in kinds:
        fields |= {
            "text": ["", 'naïve 日本 "x"\n,;', "plain"][i % 3],
            "about": {"a": [1, 2.5, None, {"deep": [[], {}, "é"]}], "b": i % 2 == 0},
            "nested": [[i], [], ["x", None]],
            "nothing": None,
        }
    return fields


def holdable(writer: Any) -> frozenset[str]:
    """Everything that a writer says it can hold."""
    assert writer.cannot_hold <= set(KINDS), writer.cannot_hold - set(KINDS)
    return frozenset(KINDS) - writer.cannot_hold


def open_written(writer: Any, path: Path) -> Storage:
    """The storage of a writer's name over what it wrote."""
    load_builtin()
    component = find(f"storage/{name_of(writer)}")
    assert component is not None, f"no storage is named {name_of(writer)}"
    return component.target(str(path), **writer.storage_arguments)


def name_of(writer: Any) -> str:
    """The name that a writer is registered by."""
    return next(known.name for known in components("writer") if known.target is type(writer))


def assert_equal_records(found: Storage, expected: Storage, *, rows: Any = None) -> None:
    """Fail unless keys, order, labels, classes and fields are equal; fields in any order."""
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
    """A record's fields by name, as text: NaN is then equal to itself."""
    number, key, fields = record
    return number, key, repr(sorted(fields.items()))


def check_writer(make_writer: Callable[[], Any], tmp_path: Path) -> None:
    """Check a writer: what comes back, what is refused, and killing it at every step.

    Args:
        make_writer: Makes it, with parts of a few records (`part_records` of at most 5).
        tmp_path: An empty folder.
    """
    writer = make_writer()
    for method in ("begin", "write_part", "join_part", "finish"):
        ours = inspect.signature(getattr(type(writer), method)).parameters
        assert list(ours) == list(inspect.signature(getattr(Writer, method)).parameters), method
    assert writer.part_records <= 5, "so that there are several parts"
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
    held = holdable(writer)
    source = records_of(held)
    write_storage(make_writer(), tmp_path / "whole", source)
    assert_equal_records(open_written(writer, tmp_path / "whole"), source)
    names = [file.name for file in (tmp_path / "whole").rglob("*")]
    assert not [name for name in names if name.startswith(("spool", "."))], "nothing is left over"
    needed = {"labels", "files"} if "pixels" in writer.cannot_hold else {"labels"}
    for kind in sorted(held - needed):
        fewer = records_of(held - {kind})
        write_storage(make_writer(), tmp_path / f"without {kind}", fewer)
        assert_equal_records(open_written(writer, tmp_path / f"without {kind}"), fewer)
    _check_refusals(make_writer, held, tmp_path / "refused")
    _check_left_out(make_writer, held, tmp_path / "left out")
    _check_order(make_writer, source, tmp_path)
    _check_killed(make_writer, held, tmp_path / "killed")


def _check_refusals(make_writer: Any, held: frozenset[str], folder: Path) -> None:
    for kind in sorted(make_writer().cannot_hold):
        with pytest.raises(ValueError) as error:
            write_storage(make_writer(), folder, records_of(held | {kind}))
        assert "\n" not in str(error.value), kind
        assert not folder.exists()


def _check_left_out(make_writer: Any, held: frozenset[str], folder: Path) -> None:
    """Records that cannot be read leave no hole: a whole part of them, and single ones."""
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
    _join_all(writer, folder, plan, _parts(writer, folder, plan, listed))
    assert_equal_records(open_written(writer, folder), listed, rows=rows)


def _check_killed(make_writer: Any, held: frozenset[str], folder: Path) -> None:
    """Killed by SIGKILL and gone on with: the same bytes."""
    source = records_of(held, 13)

    def make(target: Path) -> Any:
        writer = make_writer()
        return packing_of(target, writer, name_of(writer), {"train": source})

    assert check_killed(make, folder, contents, kills=_KILLS) > _KILLS


def _check_order(make_writer: Any, source: ListedRecords, tmp_path: Path) -> None:
    """Parts written in any order, twice, joined and finished twice: the same bytes."""
    writer = make_writer()
    plan = make_plan(writer, source)
    assert len(plan.parts) > 1
    folder = tmp_path / "again"
    folder.mkdir()
    writer.begin(folder, plan)
    for part in plan.parts[::-1]:
        write_part(pickle.loads(pickle.dumps(writer)), folder, plan, part, source)
    make_writer().begin(folder, plan)  # another process goes on
    summaries = _parts(make_writer(), folder, plan, source)
    _join_all(make_writer(), folder, plan, summaries, twice=True)
    assert contents(folder) == contents(tmp_path / "whole")


def _parts(writer: Any, folder: Path, plan: PackPlan, source: Storage) -> list[PartSummary]:
    summaries: list[PartSummary] = []
    for part in plan.parts:
        found = write_part(writer, folder, plan, part, source, skip_bad=True)
        summaries.append(replace(found, first=sum(map(len, summaries))))
    return summaries


def _join_all(
    writer: Any, folder: Path, plan: PackPlan, summaries: list[PartSummary], twice: bool = False
) -> None:
    for done in summaries:
        if twice:
            writer.join_part(folder, plan, done)
        join(writer, folder, plan, done)
    for _ in range(1 + twice):
        writer.finish(folder, plan, summaries)


def contents(folder: Path) -> dict[str, str]:
    """Hashes of all files below a folder by their names."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }

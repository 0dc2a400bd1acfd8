"""Contract of a packed form, through `penstock pack`: it gives back what was packed."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.sample import Record
from tests.console import penstock
from tests.contracts.components import storage_at
from tests.contracts.killing import killed_at
from tests.contracts.records import COUNT, KINDS, ListedRecords, pickled, records_of
from tests.contracts.storage import contents, plain

KILLS = 4


def check_packing(
    form: str, tmp_path: Path, *, cannot_hold: Collection[str] = (), options: Sequence[str] = ()
) -> None:
    """Pack records of every kind that a form holds, and read them; refuse the others.

    Args:
        form: Name of the form.
        tmp_path: An empty folder.
        cannot_hold: Kinds of records that it refuses, of `KINDS`.
        options: Overrides that make parts of a few records.
    """
    held = KINDS - frozenset(cannot_hold)
    source = records_of(held)
    whole = pack(form, source, tmp_path / "whole", *options)
    assert_equal(storage_at(form, whole / "train"), source.records)
    by_two = pack(form, source, tmp_path / "by two", *options, "pack.num_workers=2")
    assert contents(by_two / "train") == contents(whole / "train")

    needed = {"labels", "files"} if "pixels" in cannot_hold else {"labels"}
    for kind in sorted(held - needed):
        fewer = records_of(held - {kind})
        packed = pack(form, fewer, tmp_path / f"without {kind}", *options)
        assert_equal(storage_at(form, packed / "train"), fewer.records)
    for kind in sorted(cannot_hold):
        refused = records_of(held | {kind})
        with redirect_stderr(io.StringIO()) as said:
            assert run_pack(form, refused, tmp_path / "refused", *options) != 0, kind
        assert said.getvalue().count("error: ") == 1 and "Traceback" not in said.getvalue(), kind
        assert not (tmp_path / "refused").exists()
    _check_left_out(form, held, tmp_path, options)
    _check_killed(form, held, tmp_path / "killed", options)


def run_pack(form: str, source: ListedRecords, target: Path, *options: str) -> int:
    """Pack listed records; return the exit status."""
    file = target.with_name(target.name + ".records")
    data = pickled(file, source.records, source.index.class_names)
    how = {"pack.num_workers": "0", "dataset.val_fraction": "0"}
    given = [f"{key}={value}" for key, value in how.items()]
    return penstock("pack", *data, *given, f"pack.to={form}", f"pack.path='{target}'", *options)


def pack(form: str, source: ListedRecords, target: Path, *options: str) -> Path:
    """Pack listed records into a folder, which is returned."""
    assert run_pack(form, source, target, *options) == 0
    return target


def assert_equal(found: Any, records: Mapping[str, dict[str, Any] | None]) -> None:
    """Compare a storage with the good ones of the records: order, keys, fields and classes."""
    good = {key: fields for key, fields in records.items() if fields is not None}
    got = found.read(np.arange(len(found)))
    assert [record.key for record in got] == list(good)
    for record, fields in zip(got, good.values(), strict=True):
        assert isinstance(record, Record)
        one, other = ({k: v for k, v in each.items()} for each in (record.fields, fields))
        assert repr(sorted(plain(one).items())) == repr(sorted(plain(other).items())), record.key
    if all("label" in fields for fields in good.values()):
        labels = [fields["label"] for fields in good.values()]
        assert found.index.column("label").tolist() == labels


def _check_left_out(form: str, held: frozenset[str], folder: Path, options: Sequence[str]) -> None:
    """Check that bad records, single ones and a whole part, are left out and leave no hole."""
    listed = records_of(held, 3 * COUNT)
    bad = {0, 4, *range(5, 10)}
    records = {k: None if i in bad else v for i, (k, v) in enumerate(listed.records.items())}
    source = ListedRecords(records, listed.index.class_names)
    packed = pack(form, source, folder / "left out", *options, "pack.on_error=skip")
    assert_equal(storage_at(form, packed / "train"), records)


def _check_killed(form: str, held: frozenset[str], folder: Path, options: Sequence[str]) -> None:
    """Kill a packing at some of the steps that change the disk; packing again completes it."""
    source = records_of(held, 13)
    folder.mkdir()

    def packs(target: Path) -> Any:
        return lambda: run_pack(form, source, target, *options)

    steps = folder / "steps"
    assert killed_at(packs(folder / "whole"), None, steps=steps) == 0
    wanted = contents(folder / "whole")
    count = int(steps.read_text())
    assert count > KILLS
    for step in range(count // KILLS // 2, count, count // KILLS):
        target = folder / str(step)
        assert killed_at(packs(target), step) is None, step
        if not target.exists():  # the folder appears when it is whole
            assert killed_at(packs(target), None) == 0, step
        assert contents(target) == wanted, f"killed at step {step}"
        left = [name for name in os.listdir(folder) if name.startswith(".")]
        assert not left or target.exists(), left

"""Batches of tables taken as a whole: those that rows one by one would make, to the last bit."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.sample import Record
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.storages.arrays import MemmapStorage
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.pipeline.collates.fields import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.random import SequentialSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from penstock.transforms.decode.table import TableDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same

N = 90


def draw(seed: int) -> dict[str, list]:
    """Columns with values missing here and there; the last rows have categories of their own."""
    rng = np.random.default_rng(seed)

    def some(values, share=0.2):
        return [None if rng.random() < share else value for value in values]

    towns = ["Rome", "Oslo", 'a "b",\nc', "ünï", "7", "-0"]
    return {
        "size": some((rng.normal(size=N) * 10.0 ** rng.integers(-30, 30, N)).tolist()),
        "count": rng.integers(-5, 5, N).tolist(),
        "some": some(rng.integers(-(2**53), 2**53, N).tolist()),
        "town": some([towns[i] for i in rng.integers(0, 6, N)]),
        "late": some(["old" if i < 60 else f"new{i}" for i in range(N)]),
        "code": some([float(x) for x in rng.choice([0.0, -0.0, 2.5, 1e20, 3.0], N)]),
        "price": [float(x) for x in rng.normal(size=N)],
        "label": rng.integers(0, 3, N).tolist(),
    }


def write_csv(folder: Path, columns: dict[str, list]) -> CsvStorage:
    import csv

    rows = zip(*columns.values(), strict=True)
    with open(folder / "t.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(columns)
        csv.writer(file).writerows(["" if v is None else repr(v) if isinstance(v, float) else v
                                    for v in row] for row in rows)  # fmt: skip
    return CsvStorage(str(folder / "t.csv"))


def write_parquet(folder: Path, columns: dict[str, list]) -> ParquetStorage:
    table = pa.table(columns)
    kinds = {"count": pa.int8(), "code": pa.float32(), "late": pa.large_string()}
    for name, kind in kinds.items():
        if name in columns:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(name).cast(kind))
    for part, start in enumerate((0, N // 2)):
        pq.write_table(table.slice(start, N // 2), folder / f"{part}.parquet", row_group_size=17)
    return ParquetStorage(str(folder))


def write_arrow(folder: Path, columns: dict[str, list]) -> ArrowStorage:
    table = pa.table({**columns, "yes": [n % 3 == 0 for n in range(N)]})
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    return ArrowStorage(str(folder / "t.arrow"))


def write_arrays(folder: Path, columns: dict[str, list]) -> MemmapStorage:
    for name, values in columns.items():
        if name not in ("town", "late"):
            kind = np.int64 if name in ("count", "label") else np.float64
            array = np.array([np.nan if value is None else value for value in values], kind)
            np.save(folder / ("labels.npy" if name == "label" else f"{name}.npy"), array)
    np.save(folder / "vectors.npy", np.arange(N * 4, dtype=np.float32).reshape(N, 4))
    return MemmapStorage(str(folder))


WRITE = {"csv": write_csv, "parquet": write_parquet, "arrow": write_arrow, "memmap": write_arrays}
DECODE = [
    {},
    {"scaling": "robust", "missing": "mean", "categorical": ["code", "count"]},
    {"scaling": "min_max", "target": "price", "min_count": 3},
    {"scaling": "none", "categorical": ["some"], "numeric": ["count"]},
]


def fitted(storage, **arguments) -> TableDecoder:
    """A decoder that knows the first rows."""
    decoder = TableDecoder(**arguments)
    rows = [record.fields for record in storage.read(np.arange(60))]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    decoder.learn(decoder.fit([columns], where="table"))
    return decoder


def computer(storage, decode, *, whole=True, keys=None, on_error="replace") -> BatchComputer:
    transform = Stack({}, build_step=build_step)
    data = MapDataset(storage, decode=decode, transform=transform, seed=0, keys=keys)
    made = BatchComputer(
        data, sampler=SequentialSampler(len(storage)), collate=stack, seed=0, on_error=on_error
    )
    assert made.way == "columns"
    if not whole:
        made.way = "sample"
    return made


def task(seed=0, count=40) -> BatchTask:
    rng = np.random.default_rng(seed)
    at = rng.integers(0, N, count)
    return BatchTask(3, 1, at, np.ones(count, np.bool_), rng.permutation(N)[at])


@pytest.fixture
def decoded(monkeypatch):
    """The keys of the records that were decoded by themselves."""
    keys = []
    for kind in (TableDecoder, RawDecoder):
        call = kind.__call__

        def counting(self, record: Record, call=call):
            keys.append(record.key)
            return call(self, record)

        monkeypatch.setattr(kind, "__call__", counting)
    return keys


@pytest.mark.parametrize("kind", WRITE)
def test_a_batch_is_that_of_its_rows(tmp_path, kind, decoded):
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        storage = WRITE[kind](folder, draw(seed))
        for arguments in DECODE:
            decode = fitted(storage, **arguments)
            asked = task(seed)
            expected = computer(storage, decode, whole=False)(asked)
            decoded.clear()
            for way in (storage, pickle.loads(pickle.dumps(storage))):
                found = computer(way, pickle.loads(pickle.dumps(decode)))(asked)
                assert_same(found.batch, expected.batch)
                assert list(found.batch) == list(expected.batch), "fields in their order"
                assert found.faults == expected.faults == ()
            assert not decoded, "no row was decoded by itself"


BAD = {
    "not a finite number": ("size", float("inf")),
    "is too large to be scaled": ("size", 1e308),
    "its target 'price' is missing": ("price", None),
}


@pytest.mark.parametrize("kind", ["csv", "parquet", "memmap"])
@pytest.mark.parametrize("cause", BAD)
def test_bad_rows_are_bad_as_they_are_by_themselves(tmp_path, kind, cause):
    columns = draw(1)
    name, value = BAD[cause]
    columns["size"] = [None if v is None else v % 1 for v in columns["size"]]
    for row in (61, 70, 88):
        columns[name][row] = value
    storage = WRITE[kind](tmp_path, columns)
    decode = fitted(storage, target="price", categorical=["code"])
    asked = BatchTask(0, 0, np.arange(50, 90), np.ones(40, np.bool_), np.arange(50, 90))
    for on_error in ("skip", "replace"):
        expected = computer(storage, decode, whole=False, on_error=on_error)(asked)
        found = computer(storage, decode, on_error=on_error)(asked)
        assert_same(found.batch, expected.batch)
        assert found.faults == expected.faults
        assert [fault.position for fault in found.faults] == [61, 70, 88]
        assert all(cause in fault.cause for fault in found.faults)
    with pytest.raises(ValueError, match=cause) as one_by_one:
        computer(storage, decode, whole=False, on_error="raise")(asked)
    with pytest.raises(ValueError, match=cause) as whole:
        computer(storage, decode, on_error="raise")(asked)
    assert str(whole.value) == str(one_by_one.value)


def test_a_damaged_group_is_bad_row_by_row(tmp_path):
    storage = write_parquet(tmp_path, draw(0))
    decode = fitted(storage)
    made = computer(pickle.loads(pickle.dumps(storage)), decode, on_error="skip")
    os.unlink(tmp_path / "1.parquet")
    asked = BatchTask(0, 0, np.arange(30, 60), np.ones(30, np.bool_), np.arange(30, 60))
    assert [fault.position for fault in made(asked).faults] == list(range(45, 60))

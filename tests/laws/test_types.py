"""The type, dtype and shape of a field follow from its column, never from the rows of a batch."""

import csv
import math
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from penstock import build_loader, compose

ROWS = 48
NULLS = {6, 7, 8, 30}  # one batch of three has nothing else, most have none


def _column(value_of):
    return [None if row in NULLS else value_of(row) for row in range(ROWS)]


SCALARS = {
    "float": (pa.float64(), _column(lambda row: row / 2)),
    "single": (pa.float32(), _column(lambda row: row / 4)),
    "whole": (pa.int64(), _column(lambda row: row)),
    "full": (pa.int64(), list(range(ROWS))),
    "text": (pa.string(), _column(lambda row: f"t{row % 3}")),
}
FLAG = {"flag": (pa.bool_(), _column(lambda row: row % 2 == 0))}
ARROW_ONLY = {
    **FLAG,
    "day": (pa.date32(), _column(lambda row: row)),
    "price": (pa.decimal128(8, 2), _column(lambda row: row)),
    "code": (pa.dictionary(pa.int8(), pa.int64()), _column(lambda row: row % 4)),
    "vector": (pa.list_(pa.float32(), 2), _column(lambda row: [row, row + 1])),
    "pair": (pa.list_(pa.int16(), 2), _column(lambda row: [row, row + 1])),
    "holes": (pa.list_(pa.float32()), [[1, value and 2] for value in _column(lambda row: 1)]),
    "gaps": (pa.list_(pa.int64()), [[1, value and 2] for value in _column(lambda row: 1)]),
}


def _arrow_table(columns):
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def _write_parquet(folder):
    table = _arrow_table({**SCALARS, **ARROW_ONLY})
    pq.write_table(table, folder / "t.parquet", row_group_size=10)
    return ["dataset=parquet", f"dataset.storage.path={folder / 't.parquet'}"]


def _write_parquet_without_counts(folder):
    table = _arrow_table({**SCALARS, **FLAG})
    pq.write_table(table, folder / "t.parquet", row_group_size=10, write_statistics=False)
    return ["dataset=parquet", f"dataset.storage.path={folder / 't.parquet'}"]


def _write_arrow(folder, more=ARROW_ONLY):
    table = _arrow_table({**SCALARS, **more})
    with pa.OSFile(str(folder / "t.arrow"), "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    return ["dataset=arrow", f"dataset.storage.path={folder / 't.arrow'}"]


def _write_arrow_numbers(folder):
    return _write_arrow(folder, FLAG)


def _write_csv(folder):
    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SCALARS)
        writer.writerows(zip(*(values for _, values in SCALARS.values()), strict=True))
    return ["dataset=csv", f"dataset.storage.path={folder / 't.csv'}"]


def _write_sql(folder):
    with sqlite3.connect(folder / "t.db") as database:
        database.execute("CREATE TABLE t (float REAL, single REAL, whole INT, full INT, text TEXT)")
        rows = zip(*(values for _, values in SCALARS.values()), strict=True)
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
    return ["dataset=sql", f"dataset.storage.url=sqlite:///{folder / 't.db'}"]


WRITERS = {
    "parquet": _write_parquet,
    "parquet_without_counts": _write_parquet_without_counts,
    "arrow": _write_arrow,
    "arrow_numbers": _write_arrow_numbers,
    "csv": _write_csv,
    "sql": _write_sql,
}
ENGINES = {"inline": 0, "threads": 2, "processes": 1, "torch": 1}
PARTS = [(0, 1), (0, 2), (1, 2)]


def _batches(storage, engine, rank, ranks):
    config = compose(
        [
            *storage,
            "dataset/decode=raw",
            "dataset.val_fraction=0",
            "augment=as_is",
            "sampler=sequential",
            f"loader.batch_size={3 * ranks}",
            f"loader.engine={engine}",
            f"loader.num_workers={ENGINES[engine]}",
        ]
    )
    with build_loader(config, "train", rank=rank, world_size=ranks) as loader:
        yield from loader


def _type_of(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape[1:])
    return type(value).__name__


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("storage", WRITERS)
def test_types_follow_the_column(tmp_path, storage, engine):
    place = WRITERS[storage](tmp_path)
    types = {}
    for rank, ranks in PARTS:
        rows = 0
        for batch in _batches(place, engine, rank, ranks):
            rows += len(batch["index"])
            for field, value in batch.items():
                types.setdefault(field, set()).add(_type_of(value))
            _check_values(batch)
        assert rows == ROWS // ranks
    assert {field: found for field, found in types.items() if len(found) > 1} == {}
    assert types["float"] == types["single"] == types["whole"] == {("torch.float32", ())}
    assert types["full"] == {("torch.int64", ())}
    assert types["text"] == {"list"}


def _check_values(batch):
    for place, row in enumerate(batch["index"].tolist()):
        missing = row in NULLS
        assert batch["full"][place] == row
        assert batch["text"][place] == (None if missing else f"t{row % 3}")
        for field in ("float", "single", "whole", "flag", "day", "price", "code"):
            if field in batch:
                value = float(batch[field][place])
                expected = float({**SCALARS, **ARROW_ONLY}[field][1][row] or 0)
                assert math.isnan(value) if missing else value == expected, field
        for field in ("vector", "pair"):
            if field in batch:
                expected = [np.nan] * 2 if missing else [row, row + 1]
                assert np.array_equal(batch[field][place], expected, equal_nan=True)
        for field in ("holes", "gaps"):
            if field in batch:
                expected = [1, np.nan if missing else 2]
                assert np.array_equal(batch[field][place], expected, equal_nan=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sqlite_column_of_numbers_and_texts_is_text(tmp_path, rank):
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("CREATE TABLE t (mixed)")
        database.executemany("INSERT INTO t VALUES (?)", [(row,) for row in range(11)] + [("x",)])
    place = ["dataset=sql", f"dataset.storage.url=sqlite:///{tmp_path / 't.db'}"]
    found = [value for batch in _batches(place, "inline", rank, 2) for value in batch["mixed"]]
    expected = [*map(str, range(11)), "x"]
    assert found == [expected[row] for row in range(12) if row // 3 % 2 == rank]


def test_a_null_that_comes_during_a_run_is_a_bad_record(tmp_path):
    place = _write_sql(tmp_path)
    batches = _batches(place, "inline", 0, 1)
    next(batches)
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("UPDATE t SET full = NULL WHERE full = 40")
    rest = list(batches)
    assert {_type_of(batch["full"]) for batch in rest} == {("torch.int64", ())}
    found = [row for batch in rest for row in batch["index"].tolist()]
    assert len(found) == ROWS - 3 and 40 not in found[36:]

"""A null in a column of lengths, weights or labels is refused, and the message names its row."""

import csv
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose

ROWS, NULL = 40, 23
IN_ORDER = ["sampler=sequential"]
FIXED = [
    "dataset/decode=raw",
    "dataset.val_fraction=0",
    "augment=as_is",
    "loader.batch_size=4",
    "loader.num_workers=0",
]


def _write_parquet(folder, columns):
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=7)
    return ["dataset=parquet", f"dataset.storage.path={folder / 't.parquet'}"]


def _write_arrow(folder, columns):
    table = pa.table(columns)
    with pa.OSFile(str(folder / "t.arrow"), "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return ["dataset=arrow", f"dataset.storage.path={folder / 't.arrow'}"]


def _write_csv(folder, columns):
    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return ["dataset=csv", f"dataset.storage.path={folder / 't.csv'}"]


def _write_sql(folder, columns):
    with sqlite3.connect(folder / "t.db") as database:
        database.execute(f"CREATE TABLE t ({', '.join(columns)})")
        marks = ", ".join("?" * len(columns))
        rows = zip(*columns.values(), strict=True)
        database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
    return ["dataset=sql", f"dataset.storage.url=sqlite:///{folder / 't.db'}"]


WRITERS = {"parquet": _write_parquet, "arrow": _write_arrow, "csv": _write_csv, "sql": _write_sql}


def _message(storage, *more):
    config = compose([*storage, *FIXED, *more])
    with pytest.raises(ValueError) as error, build_loader(config, "train") as loader:
        list(loader)
    return str(error.value)


def _with_null(value_of):
    return [None if row == NULL else value_of(row) for row in range(ROWS)]


@pytest.mark.parametrize("kind", ["whole", "list"])
@pytest.mark.parametrize("storage", ["parquet", "arrow"])
def test_a_null_length(tmp_path, storage, kind):
    lengths = _with_null(lambda row: row % 5 if kind == "whole" else [0] * (row % 5))
    place = WRITERS[storage](tmp_path, {"tokens": [[1, 2]] * ROWS, "len": lengths})
    message = _message(
        place,
        "collate=pad",
        "dataset.storage.length_column=len",
        "sampler=token_budget",
        "sampler.max_tokens=100",
    )
    assert "length_column 'len'" in message and f"record {NULL}" in message


@pytest.mark.parametrize("first", [0, NULL])
@pytest.mark.parametrize("storage", WRITERS)
def test_a_null_weight(tmp_path, storage, first):
    weights = [None if row == NULL - first else 1 + row for row in range(ROWS)]
    place = WRITERS[storage](tmp_path, {"x": list(range(ROWS)), "quality": weights})
    message = _message(place, "sampler=weighted", "sampler.weights=quality")
    assert "quality" in message and f"row {NULL - first}" in message


@pytest.mark.parametrize("storage", WRITERS)
def test_a_null_label(tmp_path, storage):
    labels = _with_null(lambda row: row % 3)
    place = WRITERS[storage](tmp_path, {"x": list(range(ROWS)), "label": labels})
    message = _message(place)
    line = f"line {NULL + 2}"  # behind the header, counted from 1
    assert "label" in message and (line if storage == "csv" else f"record {NULL}") in message


@pytest.mark.parametrize("storage", [*WRITERS, "rows"])
def test_a_large_integer_of_a_column_with_a_null(tmp_path, storage):
    columns = {"x": list(range(ROWS)), "id": _with_null(lambda row: (1 << 24) + row - 30)}
    if storage == "rows":
        storage, columns["point"] = "parquet", [[1, 2]] * ROWS
    place = WRITERS[storage](tmp_path, columns)
    message = _message(place, *IN_ORDER)
    assert "'id' is 16777217 " in message and "dataset.keys={id:null}" in message
    for remedy in ("dataset.keys={id:null}", "dataset/decode=table"):
        with build_loader(compose([*place, *FIXED, *IN_ORDER, remedy]), "train") as loader:
            assert sum(len(batch["index"]) for batch in loader) == ROWS


@pytest.mark.parametrize("storage", ["parquet", "arrow"])
def test_a_null_list_is_a_bad_record(tmp_path, storage):
    lists = _with_null(lambda row: [float(row)] * (row % 3 + 1))
    place = WRITERS[storage](tmp_path, {"x": list(range(ROWS)), "items": lists})
    message = _message(place, "collate=pad", "loader.on_error=raise", *IN_ORDER)
    assert f"position {NULL}" in message and "'items'" in message
    assert "dataset.storage.columns" in message


def test_the_remedy_for_a_null_list(tmp_path):
    lists = _with_null(lambda row: [float(row)] * (row % 3 + 1))
    place = _write_parquet(tmp_path, {"x": list(range(ROWS)), "items": lists})
    config = compose([*place, *FIXED, *IN_ORDER, "dataset.storage.columns=[x]"])
    with build_loader(config, "train") as loader:
        assert [row for batch in loader for row in batch["x"].tolist()] == list(range(ROWS))

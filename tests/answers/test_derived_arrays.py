"""Weights and statistics follow the data: after an edit, and in another folder of equal shape."""

import csv
import sqlite3
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose

ROWS = 40
FIRST, SECOND = 3, 31  # rows that alone have a weight above zero


def _write_memmap(folder, columns):
    folder.mkdir(exist_ok=True)
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    return ["dataset=memmap", f"dataset.storage.path={folder}"]


def _write_shards(folder, columns):
    folder.mkdir(exist_ok=True)
    for part in range(2):
        half = slice(part * ROWS // 2, (part + 1) * ROWS // 2)
        np.savez(folder / f"{part}.npz", **{name: v[half] for name, v in columns.items()})
    return ["dataset=npy_shards", f"dataset.storage.path={folder}"]


def _write_parquet(folder, columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=7)
    return ["dataset=parquet", f"dataset.storage.path={folder / 't.parquet'}"]


def _write_arrow(folder, columns):
    folder.mkdir(exist_ok=True)
    table = pa.table(columns)
    with pa.OSFile(str(folder / "t.arrow"), "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return ["dataset=arrow", f"dataset.storage.path={folder / 't.arrow'}"]


def _write_csv(folder, columns):
    folder.mkdir(exist_ok=True)
    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(v.tolist() for v in columns.values()), strict=True))
    return ["dataset=csv", f"dataset.storage.path={folder / 't.csv'}"]


def _write_sql(folder, columns):
    folder.mkdir(exist_ok=True)
    with sqlite3.connect(folder / "t.db") as database:
        database.execute("DROP TABLE IF EXISTS t")
        database.execute(f"CREATE TABLE t ({', '.join(columns)})")
        rows = zip(*(v.tolist() for v in columns.values()), strict=True)
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(columns))})", rows)
    return ["dataset=sql", f"dataset.storage.url=sqlite:///{folder / 't.db'}"]


def _write_hdf5(folder, columns):
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "t.h5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    return ["dataset=hdf5", f"dataset.storage.path={folder / 't.h5'}"]


WRITERS = {
    "memmap": _write_memmap,
    "npy_shards": _write_shards,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "sql": _write_sql,
    "hdf5": _write_hdf5,
}


def _columns(row):
    quality = np.zeros(ROWS)
    quality[row] = 1.0
    return {"x": np.arange(ROWS, dtype=np.int64) * 3 % 7, "quality": quality}


def _batch(storage, *more):
    config = compose(
        [
            *storage,
            "dataset.val_fraction=0",
            "augment=as_is",
            "loader.batch_size=4",
            "loader.num_workers=0",
            *more,
        ]
    )
    with build_loader(config, "train") as loader:
        return next(iter(loader))


def _drawn(storage):
    weighted = ["dataset/decode=raw", "sampler=weighted", "sampler.weights=quality"]
    return set(_batch(storage, *weighted)["index"].tolist())


@pytest.mark.parametrize("storage", WRITERS)
def test_weights_of_another_folder_and_after_an_edit(tmp_path, storage):
    write = WRITERS[storage]
    assert _drawn(write(tmp_path / "a", _columns(FIRST))) == {FIRST}
    assert _drawn(write(tmp_path / "b", _columns(SECOND))) == {SECOND}
    assert _drawn(write(tmp_path / "a", _columns(SECOND))) == {SECOND}


def test_weights_edited_in_place(tmp_path):
    place = _write_memmap(tmp_path, _columns(FIRST))
    assert _drawn(place) == {FIRST}
    values = np.load(tmp_path / "quality.npy")
    values[[FIRST, SECOND]] = values[[SECOND, FIRST]]
    with open(tmp_path / "quality.npy", "r+b") as file:
        np.save(file, values)
    assert _drawn(place) == {SECOND}


@pytest.mark.parametrize("storage", ["parquet", "arrow", "csv", "sql"])
def test_statistics_of_another_folder_and_after_an_edit(tmp_path, storage):
    def features(folder, scale):
        columns = {"x": np.arange(ROWS) % 5 + 0.5, "y": np.arange(ROWS) % 3 * scale}
        place = WRITERS[storage](folder, columns)
        decode = ["dataset/decode=table", "dataset.decode.scaling=min_max", "sampler=sequential"]
        return _batch(place, *decode)["features"][:, 1].tolist()

    expected = [0.0, 0.5, 1.0, 0.0]
    for folder, scale in [("a", 1.0), ("b", 4.0), ("a", 8.0)]:
        assert features(tmp_path / folder, scale) == expected


def test_lengths_of_another_folder_with_annotations(tmp_path):
    values = "".join(f"{row:08d},{row}\n" for row in range(ROWS))
    (tmp_path / "values.csv").write_text(f"key,y\n{values}")

    def batch_sizes(folder, length):
        columns = {"tokens": [[1] * 5] * ROWS, "len": [length] * ROWS}
        place = _write_parquet(Path(tmp_path, folder), columns)
        batch = _batch(
            place,
            "dataset/decode=raw",
            "dataset/annotations=values_csv",
            f"dataset.annotations.path={tmp_path / 'values.csv'}",
            "dataset.storage.length_column=len",
            "collate=pad",
            "sampler=token_budget",
            "sampler.max_tokens=20",
            "loader.batch_size=40",
        )
        return len(batch["index"])

    assert [batch_sizes("a", 5), batch_sizes("b", 10)] == [4, 2]

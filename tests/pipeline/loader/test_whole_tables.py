"""Batches of tables taken as a whole: those that rows one by one would make, to the last bit."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import compose
from penstock.core.sample import Record
from penstock.datasets.fitting import _chunks
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.sample_stages import DecodeStage
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.csv import CsvStorage
from penstock.datasets.storages.memmap import MemmapStorage
from penstock.datasets.storages.parquet import ParquetStorage
from penstock.pipeline.build import build_loader
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.loader.digest import batch_digest
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.transforms.cpu.stack import build_stack
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
        "some": some(rng.integers(-(2**60), 2**60, N).tolist()),
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
    {"scaling": "robust", "missing": "mean", "indicators": False, "categorical": ["code", "count"]},
    {"scaling": "min_max", "missing": "constant", "fill": -3.5, "target": "price", "min_count": 3},
    {"scaling": "none", "max_categories": 1, "categorical": ["some"], "numeric": ["count"]},
]


def fitted(storage, **arguments) -> TableDecoder:
    """A decoder that knows the first rows."""
    decoder = TableDecoder(**arguments)
    rows = [record.fields for record in storage.read(np.arange(60))]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    decoder.learn(decoder.fit([columns], where="table"))
    return decoder


def computer(storage, decode, *, whole=True, keys=None, on_error="replace") -> BatchComputer:
    transform = build_stack({}, build_step=build_step)
    data = MapDataset(storage, decode=decode, transform=transform, seed=0, keys=keys)
    made = BatchComputer(
        data, sampler=SequentialSampler(len(storage)), collate=stack, seed=0, on_error=on_error
    )
    assert made.way == "columns"
    if not whole:
        made._by_columns = None
    return made


def task(seed=0, count=40) -> BatchTask:
    rng = np.random.default_rng(seed)
    at = rng.integers(0, N, count)
    return BatchTask(3, 1, at, np.ones(count, np.bool_), rng.permutation(N)[at])


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("keys", [None, {"size": "other", "count": None}])
def test_rows_that_are_learned_from_are_the_same_from_columns(tmp_path, kind, keys, monkeypatch):
    storage = WRITE[kind](tmp_path, draw(0))
    stage = DecodeStage(TableDecoder(), keys=keys, storage="t")
    monkeypatch.setattr("penstock.datasets.fitting._CHUNK_ROWS", 25)
    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "read", lambda *_: pytest.fail("rows are read"))
        taken = list(_chunks(storage, stage))
    monkeypatch.setattr(type(storage), "take", lambda *_: None)  # as where one is bad
    read = list(_chunks(storage, stage))
    assert [len(next(iter(chunk.values()))) for chunk in read] == [25, 25, 25, 15]

    def shown(chunks):  # NaN is not equal to itself, and numbers of NumPy are shown otherwise
        listed = [
            {k: v if isinstance(v, list) else v.tolist() for k, v in c.items()} for c in chunks
        ]
        return [{k: [repr(np.asarray(v).tolist()) for v in c[k]] for k in c} for c in listed]

    assert shown(taken) == shown(read)
    assert [*taken[0]] == [*read[0]]
    decoder = TableDecoder(categorical=["code"])
    assert decoder.fit(taken, where="t") == decoder.fit(read, where="t")


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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("keys", [None, {"town": None, "size": "label", "label": "class"},
                                  {"*": None, "some": "some", "late": "late"}])  # fmt: skip
def test_rows_that_are_not_decoded_keep_what_is_missing(tmp_path, kind, keys, decoded):
    storage = WRITE[kind](tmp_path, draw(0))
    expected = computer(storage, RawDecoder(), keys=keys, whole=False)(task()).batch
    decoded.clear()
    found = computer(storage, RawDecoder(), keys=keys)(task()).batch
    assert batch_digest(found) == batch_digest(expected), "NaN among them, bit by bit"
    assert not decoded
    assert any(isinstance(values, list) and None in values for values in found.values())


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


def test_columns_of_a_csv_are_kept_for_all_processes(tmp_path, monkeypatch, decoded):
    storage = write_csv(tmp_path, draw(0))
    decode = fitted(storage)
    computer(storage, decode)
    monkeypatch.setattr("penstock.datasets.storages.csv._Parser", None)
    again = CsvStorage(storage.path)
    assert_same(computer(again, decode)(task()).batch, computer(storage, decode)(task()).batch)


def test_tables_with_images_or_lists_are_read_row_by_row(tmp_path):
    (tmp_path / "t.csv").write_text("image,x\na.jpg,1\n")
    assert CsvStorage(str(tmp_path / "t.csv")).column_fields == ()
    pq.write_table(pa.table({"x": [1.0] * 4, "list": [[1, 2]] * 4}), tmp_path / "t.parquet")
    lists = ParquetStorage(str(tmp_path / "t.parquet"))
    assert lists.column_fields == () and lists.take(np.zeros(0, np.int64), ["x", "list"]) is None
    assert lists.take(np.zeros(0, np.int64), ["list"]) is None
    assert lists.take(np.arange(4), ["x"])["x"].tolist() == [1.0] * 4


@pytest.fixture
def batches(tmp_path):
    """Epochs of a table with a bad row, by overrides; taken whole, or made of single rows."""
    columns = draw(2)
    columns["size"] = [None if v is None else v % 1 for v in columns["size"]]
    columns["size"][7] = float("inf")

    def epochs(kind, *overrides, whole=True, **ranks):
        path = tmp_path / "t.csv" if kind == "csv" else tmp_path
        if not any(tmp_path.glob(f"*.{kind}")):
            WRITE[kind](tmp_path, columns)
        common = [f"dataset={kind}", f"dataset.storage.path={path}", "dataset/decode=table",
                  "augment=as_is", "loader.batch_size=12", "loader.drop_last=false",
                  "loader.max_error_rate=1", "dataset.val_fraction=0"]  # fmt: skip
        with build_loader(compose([*common, *overrides]), "train", **ranks) as loader:
            assert loader._compute.way == "columns"
            if not whole:
                loader._compute._by_columns = None
            found = [list(loader) for _ in range(2)]
            assert loader.stats.bad_samples or ranks
            return found

    return epochs


WAYS = {
    "inline": ["loader=inline"],
    "threads": ["loader=threads", "loader.num_workers=2"],
    "processes": ["loader=processes", "loader.num_workers=2"],
    "torch": ["loader=torch", "loader.num_workers=2"],
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("way", WAYS)
def test_every_engine_makes_the_batches_of_single_rows(batches, kind, way):
    assert_same(batches(kind, *WAYS[way]), batches(kind, *WAYS["inline"], whole=False))


@pytest.mark.parametrize("rank", range(3))
def test_every_rank_makes_the_batches_of_single_rows(batches, rank):
    ranks = {"rank": rank, "world_size": 3}
    alone = batches("csv", *WAYS["inline"], whole=False, **ranks)
    assert_same(batches("csv", *WAYS["threads"], **ranks), alone)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_texts_that_are_all_missing_so_far_are_none(tmp_path, kind):
    columns = draw(0)
    columns["late"] = [None] * 60 + [f"new{number}" for number in range(60, N)]
    storage = WRITE[kind](tmp_path, columns)
    for rows in (np.arange(10), np.array([3, 70, 5])):
        taken = storage.take(rows, {"late"})["late"].tolist()
        assert taken == [record.fields["late"] for record in storage.read(rows)]
        assert taken == [columns["late"][row] for row in rows]

"""Arrow: files, streams, folders of the public hub's save_to_disk, and damage anywhere."""

import json
import os
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.storages.arrow import ArrowStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all, summary
from tests.datasets.storages.tables import CLASSES, hub_records, hub_table, images

rng = np.random.default_rng(0)


def put(path, table, rows=10, *, kind="file", compression=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def put_saved(folder, table, shards):
    """The layout of save_to_disk, as version 5.2.0 of the hub's package writes it."""
    step = -(-len(table) // shards)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        put(folder / name, table.slice(i * step, step), rows=4, kind="stream")
    (folder / "state.json").write_text(json.dumps({"_fingerprint": "1f"}))
    return str(folder)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_contract(tmp_path, kind, compression):
    encoded = images(64)
    written = {"kind": kind, "compression": compression}
    put(tmp_path / "a/x-0.arrow", hub_table(encoded[:33]), rows=7, **written)
    put(tmp_path / "a/x-1.feather", hub_table(encoded[33:33]), **written)
    put(tmp_path / "a/x-2.ipc", hub_table(encoded[33:]), rows=100, **written)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: ArrowStorage(str(tmp_path / "a")),
        hub_records(encoded[:33]) + hub_records(encoded[33:], start=33),
        make_copy=lambda: ArrowStorage(str(tmp_path / "b/x-*")),
        processes=("forked", "new") if kind == "stream" else ("forked",),
    )
    assert ArrowStorage(str(tmp_path / "a")).index.class_names == CLASSES


def test_folders_of_save_to_disk(tmp_path):
    encoded = images(30)
    folder = put_saved(tmp_path / "set/train", hub_table(encoded), 3)
    put(tmp_path / "set/train/cache-123.arrow", hub_table(encoded))
    storage = ArrowStorage(folder)
    assert summary(storage.read(np.arange(30))) == [
        (i, *record) for i, record in enumerate(hub_records(encoded))
    ]
    assert storage.index.class_names == CLASSES
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"holds several splits; set dataset.storage.path"):
        len(ArrowStorage(str(tmp_path / "set")))


def test_a_file_that_was_replaced_is_not_read(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.arrow", hub_table(encoded), kind="stream")
    storage = ArrowStorage(path)
    assert len(storage) == 30
    put(tmp_path / "a.arrow", hub_table(encoded[::-1]), kind="stream")
    [bad] = storage.read(np.array([19]))
    assert bad.cause == "a.arrow, group 1: it was written anew while it was in use"
    os.unlink(path)
    assert "No such file" in pickle.loads(pickle.dumps(storage)).read(np.array([0]))[0].cause


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_flipped_bit_anywhere_never_ends_the_interpreter(tmp_path, kind, compression):
    encoded = images(30, largest=30)
    path = put(tmp_path / "a.arrow", hub_table(encoded), kind=kind, compression=compression)
    refused = bad = 0
    for _ in flipped(path, rng.integers(0, os.path.getsize(path), 100), rng):
        records = unless_refused(lambda: read_all(ArrowStorage(path)))
        refused += records is None
        bad += any(isinstance(record, BadRecord) for record in records or [])
    assert refused > 3
    assert bad > 3

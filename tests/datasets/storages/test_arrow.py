"""Arrow: folders that the public hub's `save_to_disk` wrote, and streams that lose batches."""

import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest

from penstock.datasets.storages.arrow import ArrowStorage
from tests.contracts.storage import summary
from tests.datasets.storages.checks import refusal
from tests.datasets.storages.tables import CLASSES, hub_records, hub_table, images, write_arrow

rng = np.random.default_rng(0)


def put_saved(folder, table, shards):
    """Write the layout of `save_to_disk` of version 5.2.0 of the hub's package."""
    folder.mkdir(parents=True)
    step = -(-len(table) // shards)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        write_arrow(table.slice(i * step, step), folder / name, 4, new=pa.ipc.new_stream)
    (folder / "state.json").write_text(json.dumps({"_fingerprint": "1f"}))
    return str(folder)


def test_folders_of_save_to_disk(tmp_path):
    encoded = images(30)
    folder = put_saved(tmp_path / "set/train", hub_table(encoded), 3)
    write_arrow(hub_table(encoded), tmp_path / "set/train/cache-123.arrow")
    storage = ArrowStorage(folder)
    assert summary(storage.read(np.arange(30))) == [
        (i, *record) for i, record in enumerate(hub_records(encoded))
    ]
    assert storage.index.class_names == CLASSES
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refusal(ArrowStorage(str(tmp_path / "set")), "holds several splits; set dataset.storage.path")


def test_a_file_that_was_replaced_is_not_read(tmp_path):
    encoded, path = images(30), tmp_path / "a.arrow"
    write_arrow(hub_table(encoded), path, new=pa.ipc.new_stream)
    storage = ArrowStorage(str(path))
    assert len(storage) == 30
    write_arrow(hub_table(encoded[::-1]), path, new=pa.ipc.new_stream)
    [bad] = storage.read(np.array([19]))
    assert bad.cause == "a.arrow, group 1: it was written anew while it was in use"
    path.unlink()
    assert "No such file" in pickle.loads(pickle.dumps(storage)).read(np.array([0]))[0].cause


@pytest.mark.parametrize("content", [lambda b: b[:-8], lambda b: b * 2])
def test_a_stream_that_does_not_end_where_the_file_ends_is_refused(tmp_path, content):
    path = tmp_path / "a.arrow"
    write_arrow(hub_table(images(30)), path, new=pa.ipc.new_stream)
    path.write_bytes(content(path.read_bytes()))
    refusal(ArrowStorage(str(path)), "the stream lacks its end mark")


def test_a_file_that_is_cut_while_it_is_mapped_gives_bad_records(tmp_path):
    path = tmp_path / "a.arrow"
    write_arrow(hub_table(images(3000)), path)
    storage = ArrowStorage(str(path))
    storage.read(np.array([0, 2999]))
    os.truncate(path, 4096)
    for record in storage.read(np.array([1500, 2999])):
        assert "written anew while it was in use" in record.cause

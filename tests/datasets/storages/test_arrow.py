"""Arrow: files, streams, folders of the public hub's save_to_disk, and damage anywhere."""

import json
import os
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.storages import arrow
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
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1f",
             "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
             "_output_all_columns": False, "_split": None}  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state))
    about = json.loads(table.schema.metadata[b"huggingface"])["info"]
    (folder / "dataset_info.json").write_text(json.dumps({"features": about["features"]}))
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
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 6, "nothing is written there"


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
    state = tmp_path / "set/train/state.json"
    good = state.read_text()
    for text, message in (
        ("", "state.json is damaged"),
        (good[:50], "state.json is damaged"),
        ("[]", "state.json is damaged"),
        ('{"_data_files": 3}', "state.json is damaged"),
        ("[" * 100_000, "state.json is damaged"),
        ('{"_data_files": []}', "no file found"),
        ('{"_data_files": [{"filename": "/etc/passwd"}]}', "nothing there"),
        ('{"_data_files": ["x"]}', "state.json is damaged"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "nothing there"),
    ):
        state.write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            len(ArrowStorage(folder))
        assert "\n" not in str(error.value)


def test_only_what_is_used_is_looked_at_and_only_once(tmp_path, monkeypatch):
    path = put(tmp_path / "a.arrow", hub_table(images(50)), kind="stream")
    storage = ArrowStorage(path)
    assert len(storage) == 50
    loaded = []
    read = arrow.ArrowFile.read
    monkeypatch.setattr(
        arrow.ArrowFile, "read", lambda f, part, *more: loaded.append(part) or read(f, part, *more)
    )
    for _ in range(3):
        storage.read(np.array([49, 3, 41, 3]))
    assert loaded == [0, 4]


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_file_cut_short_anywhere_is_one_clear_error(tmp_path, kind):
    path = put(tmp_path / "a.arrow", hub_table(images(30)), kind=kind)
    content = open(path, "rb").read()
    cuts = {0, 1, 4, 6, 8, 16, 100, len(content) // 2, len(content) - 200}
    # Behind the last batch of a stream there is only its end mark, which others leave out too.
    cuts |= {len(content) - 10, len(content) - 4, len(content) - 1} if kind == "file" else set()
    for size in cuts:
        with open(path, "wb") as file:
            file.write(content[:size])
        with pytest.raises(ValueError, match="damaged or no Arrow file: ") as error:
            len(ArrowStorage(path))
        assert "\n" not in str(error.value)


def test_a_stream_cut_between_its_batches_is_not_what_was_indexed(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.arrow", hub_table(encoded), kind="stream")
    storage = ArrowStorage(path)
    assert len(storage) == 30
    put(tmp_path / "a.arrow", hub_table(encoded[:20]), kind="stream")
    good, bad = storage.read(np.array([19, 20]))
    assert good.fields["image"] == encoded[19]
    assert bad.cause == "a.arrow, record batch 2: it is not what it was when the index was made"
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

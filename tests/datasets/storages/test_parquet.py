"""Parquet: what the hubs and others write, how often a row group is read, and damage anywhere."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.storages import parquet
from penstock.datasets.storages.parquet import ParquetStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all, summary
from tests.datasets.storages.tables import CLASSES, hub_records, hub_table, images, odd_columns

rng = np.random.default_rng(0)


def put(path, table, rows=10, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows, **options)
    return str(path)


def everything(storage):
    return summary(read_all(storage))


def wanted(records):
    return [(i, key, fields) for i, (key, fields) in enumerate(records)]


def test_contract_over_shards_in_folders(tmp_path):
    encoded = images(64)
    put(tmp_path / "a/data/x-0.parquet", hub_table(encoded[:33]), rows=7)
    put(tmp_path / "a/data/x-1.parquet", hub_table(encoded[33:33]))
    put(tmp_path / "a/data/x-2.parquet", hub_table(encoded[33:]), rows=100, compression="zstd")
    (tmp_path / "a/data/.hidden.parquet").write_text("nothing")
    (tmp_path / "a/README.md").write_text("nothing")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: ParquetStorage(str(tmp_path / "a")),
        hub_records(encoded[:33]) + hub_records(encoded[33:], start=33),
        make_copy=lambda: ParquetStorage(str(tmp_path / "b/data/x-*.parquet")),
    )
    assert ParquetStorage(str(tmp_path / "a")).index.class_names == CLASSES
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 10, "nothing is written there"


def test_contract_with_a_damaged_row_group_between_good_ones(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.parquet", hub_table(encoded), write_page_checksum=True)
    storage = ParquetStorage(path)
    assert len(storage) == 30
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.dictionary_page_offset + chunk.total_compressed_size // 2)
    records = hub_records(encoded)
    check_storage(
        lambda: storage,
        [(key, None if 10 <= i < 20 else fields) for i, (key, fields) in enumerate(records)],
        processes=("new",),
    )
    [bad] = storage.read(np.array([12]))
    assert isinstance(bad, BadRecord)
    assert "a.parquet, row group 1: cannot be read" in bad.cause


def flip(path, at, bit=3):
    with open(path, "r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 1 << bit]))


def test_columns_of_many_types(tmp_path):
    table, records = odd_columns()
    path = put(tmp_path / "a.parquet", table, rows=2)
    named = {"image_column": "picture", "label_column": "kind", "key_column": "name"}
    storage = ParquetStorage(path, **named)
    check_storage(lambda: storage, records, processes=("forked",))
    assert storage.index.class_names == ("cat", "dog")
    few = ParquetStorage(path, image_column="picture", columns=["flag"])
    assert few.read(np.array([1]))[0] == Record(1, "00000001", {"image": b"two", "flag": False})


def test_what_a_read_gives_is_not_the_cache(tmp_path):
    table, _ = odd_columns()
    storage = ParquetStorage(put(tmp_path / "a.parquet", table), columns=["boxes", "matrix"])
    for _ in range(2):
        first, second = storage.read(np.array([0, 0]))
        for name, value in (("boxes", 4), ("matrix", 4)):
            assert first.fields[name].ravel()[3] == value
            first.fields[name][:] = 9
            assert second.fields[name].ravel()[3] == value


def test_tensors(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    storage = ParquetStorage(put(tmp_path / "a.parquet", pa.table({"volume": tensors})))
    for n, record in enumerate(storage.read(np.arange(4))):
        assert record.fields["volume"].tolist() == values[n].tolist()
        assert record.fields["volume"].dtype == np.float32


class Groups:
    """Counts the row groups that are read."""

    def __init__(self, monkeypatch):
        self.read = []
        read = parquet.ParquetFile.read

        def counted(file, group, columns, images=()):
            self.read.append((group, tuple(columns)))
            return read(file, group, columns, images)

        monkeypatch.setattr(parquet.ParquetFile, "read", counted)


def test_a_batch_reads_each_row_group_once_and_only_its_columns(tmp_path, monkeypatch):
    path = put(tmp_path / "a.parquet", hub_table(images(50), other=["x"] * 50))
    groups = Groups(monkeypatch)
    storage = ParquetStorage(path, columns=["image"], cache_bytes=0)
    storage.read(rng.permutation(50))
    assert groups.read == [(part, ("image",)) for part in range(5)]
    groups.read.clear()
    for start in range(0, 50, 4):  # in order: a group that two batches share is read once
        storage.read(np.arange(start, min(start + 4, 50)))
    assert [part for part, _ in groups.read] == [0, 1, 2, 3, 4]
    storage = ParquetStorage(path)
    len(storage)  # for which labels are read
    groups.read.clear()
    for _ in range(3):
        storage.read(rng.permutation(50)[:10])
    assert len(groups.read) == 5, "all of it is in the cache"


def test_only_new_and_changed_files_are_scanned(tmp_path, monkeypatch):
    put(tmp_path / "set/a.parquet", pa.table({"label": ["x", "y"], "count": [1, None]}))
    put(tmp_path / "set/b.parquet", pa.table({"label": ["y"], "count": [2]}))
    first = ParquetStorage(str(tmp_path / "set")).fingerprint()
    opened = []
    init = parquet.ParquetFile.__init__

    def counted(file, ranges, *more):
        opened.append(os.path.basename(ranges.path))
        init(file, ranges, *more)

    monkeypatch.setattr(parquet.ParquetFile, "__init__", counted)
    assert ParquetStorage(str(tmp_path / "set")).fingerprint() == first
    assert not opened
    put(tmp_path / "set/c.parquet", pa.table({"label": ["a"], "count": [3]}))
    storage = ParquetStorage(str(tmp_path / "set"))
    assert storage.index.column("label").tolist() == [1, 2, 2, 0]
    assert opened == ["c.parquet"]
    assert [type(record.fields["count"]) for record in read_all(storage)] == [float] * 4
    third = storage.fingerprint()
    put(tmp_path / "set/c.parquet", pa.table({"label": ["a"], "count": [3], "more": ["x"]}))
    assert len({first, third, ParquetStorage(str(tmp_path / "set")).fingerprint()}) == 3


def test_images_that_are_not_in_the_file_are_bad_and_no_other_file_is_opened(tmp_path):
    path = put(tmp_path / "a.parquet", hub_table([b"1", None, b"3"]))
    records = ParquetStorage(path).read(np.arange(3))
    assert [r.fields["image"] for r in records if isinstance(r, Record)] == [b"1", b"3"]
    assert "column 'image': has no image in it" in records[1].cause


def test_labels(tmp_path):
    def labels(table, **options):
        path = put(tmp_path / "l.parquet", table)
        index = ParquetStorage(path, **options).index
        return index.column("label").tolist(), index.class_names

    assert labels(pa.table({"label": [3, 0, 1]})) == ([3, 0, 1], ("0", "1", "2", "3"))
    assert labels(pa.table({"label": ["b", "10", "a"]})) == ([2, 0, 1], ("10", "a", "b"))
    assert labels(pa.table({"label": [True, False]})) == ([1, 0], ("0", "1"))
    assert labels(hub_table([b""] * 2), classes=["dog", "x", "cat"]) == (
        [2, 0],
        ("dog", "x", "cat"),
    )
    other = pa.table({"kind": ["b"], "label": [1.5]})
    assert labels(other, label_column="kind") == ([0], ("b",))
    storage = ParquetStorage(put(tmp_path / "f.parquet", pa.table({"label": [[1, 0], [0, 1]]})))
    assert storage.index.class_names is None, "several labels are a field as any other"
    assert storage.read(np.array([1]))[0].fields["label"].tolist() == [0, 1]


TABLES = {
    "no_label": (pa.table({"image": [b"1"]}), {"label_column": "label"},
                 "no column 'label'; columns: image"),
    "no_image": (pa.table({"x": [1]}), {"image_column": "image"}, "no column 'image'; columns: x"),
    "no_column": (pa.table({"x": [1]}), {"columns": ["y"]}, "no column 'y'; columns: x"),
    "float_label": (pa.table({"x": [1.5]}), {"label_column": "x"},
                    "label_column 'x' is double, expected whole numbers or text"),
    "no_label_value": (pa.table({"label": [1, None, 2]}), {}, "record 1 has no label .1 in all"),
    "negative": (pa.table({"label": [1, -1]}), {}, "label -1 in record 1, expected 0 or more"),
    "huge": (pa.table({"label": [1 << 40]}), {}, "in 1 records is no class id"),
    "unnamed": (hub_table([b""] * 4, names=CLASSES).set_column(1, "label", pa.array([0, 1, 2, 3])),
                {}, "label 3, but the data names 3 classes"),
    "other_class": (pa.table({"label": ["a", "b"]}), {"classes": ["a"]},
                    "class 'b' is not among the 1 classes"),
    "key_twice": (pa.table({"k": ["a", "b", "a"]}), {"key_column": "k"},
                  "key_column 'k': key 'a' stands twice, in the records 0 and 2"),
    "no_key": (pa.table({"k": ["a", None]}), {"key_column": "k"}, "record 1 has no key"),
    "float_key": (pa.table({"k": [1.5]}), {"key_column": "k"}, "is double, expected text"),
    "number_image": (pa.table({"image": [1]}), {}, "'image' is int64, expected an image's by"),
    "outside": (pa.table({"image": ["a.jpg", "../b.jpg"]}), {}, "record 1: '../b.jpg' leads out"),
    "path_twice": (pa.table({"image": ["a.jpg", "a.jpg"]}), {}, "key 'a.jpg' stands twice"),
    "reserved": (pa.table({"index": [1], "x": [1]}), {}, "column 'index' has a name that samples"),
    "two_images": (pa.table({"image": [b""], "p": [b""]}), {"image_column": "p"},
                   "becomes the field 'image', and there is a column of that name"),
    "no_rows": (pa.table({"x": pa.array([], pa.int64())}), {}, "no row in 1 files"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_what_is_said(tmp_path, case):
    table, options, message = TABLES[case]
    path = put(tmp_path / "a.parquet", table)
    with pytest.raises(ValueError, match=message) as error:
        len(ParquetStorage(path, **options))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"parquet {path}")


def test_files_of_one_set_have_the_same_columns(tmp_path):
    put(tmp_path / "a.parquet", pa.table({"x": [1], "y": [1]}))
    put(tmp_path / "b.parquet", pa.table({"x": [1.5], "y": [1]}))
    with pytest.raises(ValueError, match=r"b.parquet: column 'x' is double, and int64 in the fir"):
        len(ParquetStorage(str(tmp_path)))
    assert len(ParquetStorage(str(tmp_path), columns=["y"])) == 2
    put(tmp_path / "b.parquet", pa.table({"x": [1]}))
    with pytest.raises(ValueError, match=r"b.parquet: column 'y' is missing"):
        len(ParquetStorage(str(tmp_path)))


def test_wrong_paths(tmp_path):
    for path, message in (
        ("no.parquet", "nothing there; set dataset.storage.path"),
        ("no-*.parquet", "no file found"),
        ("", "no file found; expected a file, a folder of .parquet or .parq files"),
    ):
        with pytest.raises(ValueError, match=message):
            len(ParquetStorage(str(tmp_path / path)))
    (tmp_path / "gone.parquet").symlink_to("nowhere")
    with pytest.raises(ValueError, match="No such file"):
        len(ParquetStorage(str(tmp_path)))
    os.unlink(tmp_path / "gone.parquet")
    odd = put(tmp_path / "[1]*.parquet", hub_table(images(3)))
    assert len(ParquetStorage(odd)) == 3, "a file that is there is no pattern"


def test_a_file_cut_short_anywhere_is_one_clear_error(tmp_path):
    path = put(tmp_path / "a.parquet", hub_table(images(30)))
    content = open(path, "rb").read()
    footer = int.from_bytes(content[-8:-4], "little")
    for size in {0, 1, 4, 8, 12, len(content) // 2, len(content) - footer - 8,
                 len(content) - footer, len(content) - 8, len(content) - 4,
                 len(content) - 1}:  # fmt: skip
        with open(path, "wb") as file:
            file.write(content[:size])
        with pytest.raises(ValueError, match="damaged or no Parquet file: cannot be read") as error:
            len(ParquetStorage(path))
        assert "\n" not in str(error.value)


def test_a_file_cut_short_or_gone_while_it_is_open(tmp_path):
    encoded = images(30)
    path = put(tmp_path / "a.parquet", hub_table(encoded))
    storage = ParquetStorage(path, cache_bytes=0)
    assert len(storage) == 30
    chunk = pq.read_metadata(path).row_group(2).column(0)
    storage.read(np.array([0]))
    os.truncate(path, chunk.dictionary_page_offset)
    first, last = storage.read(np.array([19, 20]))
    assert first.fields["image"] == encoded[19]
    assert "the file ends" in last.cause
    storage = ParquetStorage(put(tmp_path / "b.parquet", hub_table(encoded)))
    assert len(storage) == 30
    os.unlink(tmp_path / "b.parquet")
    assert "No such file" in storage.read(np.array([3]))[0].cause
    put(tmp_path / "b.parquet", hub_table(encoded[:5]))
    assert "row group 0" in storage.read(np.array([3]))[0].cause


def test_a_flipped_bit_anywhere_is_an_error_or_spoils_its_row_group(tmp_path):
    encoded = images(40)
    path = put(tmp_path / "a.parquet", hub_table(encoded), write_page_checksum=True)
    content = open(path, "rb").read()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    records = wanted(hub_records(encoded))
    seen = 0
    places = [*rng.integers(0, footer, 60), *rng.integers(footer, len(content), 60)]
    for at in flipped(path, places, rng):
        found = unless_refused(lambda: everything(ParquetStorage(path)))
        seen += found is None
        if found is not None and at < footer:
            wrong = [n for n, row in enumerate(found) if row != records[n]]
            assert all(found[n][2] is None for n in wrong)
            assert len({n // 10 for n in wrong}) <= 1
            seen += bool(wrong)
    assert seen > 60


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    """Where the library throws in C++ what nobody catches: the sizes of levels, among others."""
    pq.write_table(pa.table({"x": [[1, 2], [3]]}), tmp_path / "a.parquet", store_schema=False)
    good, refused = (tmp_path / "a.parquet").read_bytes(), 0
    for at in range(-230, -180):
        data = bytearray(good)
        data[at] ^= 1
        (tmp_path / "a.parquet").write_bytes(data)
        try:
            storage = ParquetStorage(str(tmp_path))
            refused += isinstance(storage.read(np.arange(len(storage)))[0], BadRecord)
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 10

"""Parquet and Arrow: values of every type, the roles of columns, and tables that are refused."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from penstock.core.sample import Record
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.parquet import ParquetStorage
from tests.contracts.storage import check_storage, read_all
from tests.datasets.storages.tables import CLASSES, hub_table, odd_columns

WRITE = {
    "parquet": (lambda t, p: pa.parquet.write_table(t, p, row_group_size=2), ParquetStorage),
    "arrow": (lambda t, p: pa.feather.write_feather(t, p, chunksize=2), ArrowStorage),
}


@pytest.fixture(params=WRITE)
def put(request, tmp_path):
    """Write a table as a file, and return the function that opens it, or its folder."""
    write, storage = WRITE[request.param]

    def opener(table, name="a"):
        path = tmp_path / f"{name}.{request.param}"
        write(table, str(path))
        return lambda *, folder=False, **more: storage(str(tmp_path if folder else path), **more)

    return opener


def test_columns_of_many_types(put):
    table, records = odd_columns()
    at = put(table)
    named = {"image_column": "picture", "label_column": "kind", "key_column": "name"}
    check_storage(lambda: at(**named), records, processes=("forked",))
    assert at(**named).index.class_names == ("cat", "dog")
    few = at(image_column="picture", columns=["flag"])
    assert few.read(np.array([1]))[0] == Record(1, "00000001", {"image": b"two", "flag": False})


def test_a_column_without_a_name(put):
    [record] = read_all(put(pa.table({"": [1], "label": [0]}))())
    assert record.fields == {"": 1, "label": 0}


def test_what_a_read_gives_is_not_the_cache(put):
    storage = put(odd_columns()[0])(columns=["boxes", "matrix", "ragged"])
    for _ in range(2):
        first, second = storage.read(np.array([0, 0]))
        for name, value in (("boxes", 1), ("matrix", 1), ("ragged", 1)):
            assert first.fields[name].ravel()[0] == value
            first.fields[name][:] = 9
            assert second.fields[name].ravel()[0] == value


def test_tensors(put):
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    storage = put(pa.table({"volume": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}))()
    for n, record in enumerate(read_all(storage)):
        assert record.fields["volume"].tolist() == values[n].tolist()
        assert record.fields["volume"].dtype == np.float32


def test_an_image_that_is_not_in_the_file_is_bad(put):
    records = read_all(put(hub_table([b"1", None, b"3"]))())
    assert [r.fields["image"] for r in records if isinstance(r, Record)] == [b"1", b"3"]
    assert "column 'image': lacks image bytes" in records[1].cause


LABELS = [
    ([3, 0, 1], {}, [3, 0, 1], ("0", "1", "2", "3")),
    (["b", "10", "a"], {}, [2, 0, 1], ("10", "a", "b")),
    ([True, False], {}, [1, 0], ("0", "1")),
    (["b", "a"], {"classes": ["a", "x", "b"]}, [2, 0], ("a", "x", "b")),
]


@pytest.mark.parametrize(("values", "given", "ids", "names"), LABELS)
def test_labels(put, values, given, ids, names):
    index = put(pa.table({"label": values}))(**given).index
    assert (index.column("label").tolist(), index.class_names) == (ids, names)


def test_labels_of_the_hub_and_of_other_columns(put):
    index = put(hub_table([b""] * 2))(classes=["dog", "x", "cat"]).index
    assert (index.column("label").tolist(), index.class_names) == ([2, 0], ("dog", "x", "cat"))
    other = put(pa.table({"kind": ["b"], "label": [1.5]}))(label_column="kind")
    assert other.index.class_names == ("b",)
    lists = put(pa.table({"label": [[1, 0], [0, 1]]}))()
    assert lists.index.class_names is None, "several labels are a field as any other"
    assert lists.read(np.array([1]))[0].fields["label"].tolist() == [0, 1]


def test_class_names_of_files_are_united_and_hold_for_files_without_names(put):
    put(hub_table([b""] * 3, names=("a", "c", "b")))
    put(hub_table([b""] * 2, names=("d", "a")), "b")
    at = put(hub_table([b""] * 2).replace_schema_metadata(None), "c")
    index = at(folder=True).index
    assert index.class_names == ("a", "b", "c", "d")
    assert index.column("label").tolist() == [0, 2, 1, 3, 0, 0, 2]
    for label in (-1, 2):
        table = hub_table([b""] * 2, names=("d", "a"))
        put(table.set_column(1, "label", pa.array([0, label])), "b")
        with pytest.raises(ValueError, match=r"labels from .*: a file names 2 classes"):
            len(at(folder=True))
    put(hub_table([b""] * 3, names=("a", "c", "b")), "b")
    assert at(folder=True).index.class_names == ("a", "c", "b"), "in the order of their numbers"


def test_files_of_one_set_have_the_same_columns(put):
    put(pa.table({"x": [1], "y": [1]}))
    at = put(pa.table({"x": [1.5], "y": [1]}), "b")
    with pytest.raises(ValueError, match=r"b\.\w+: column 'x' is double, and int64 in the fir"):
        len(at(folder=True))
    assert len(at(folder=True, columns=["y"])) == 2
    at = put(pa.table({"x": [1]}), "b")
    with pytest.raises(ValueError, match=r"b\.\w+: column 'y' is missing"):
        len(at(folder=True))
    at = put(pa.table({"x": [1], "y": [1], "key": ["a"]}), "b")
    with pytest.raises(ValueError, match=r"b\.\w+: the key is the column 'key', and None"):
        len(at(folder=True))


TABLES = {
    "no_label": (pa.table({"image": [b"1"]}), {"label_column": "label"},
                 "no column 'label'; columns: image"),
    "no_image": (pa.table({"x": [1]}), {"image_column": "image"}, "no column 'image'; columns: x"),
    "no_column": (pa.table({"x": [1]}), {"columns": ["y"]}, "no column 'y'; columns: x"),
    "float_label": (pa.table({"x": [1.5]}), {"label_column": "x"},
                    "label_column 'x' is double, expected whole numbers or text"),
    "no_label_value": (pa.table({"label": [1, None, 2]}), {},
                       "record 1: column 'label' has no label .1 in all"),
    "negative": (pa.table({"label": [1, -1]}), {}, "label -1 in record 1, expected 0 or more"),
    "huge": (pa.table({"label": [1 << 40]}), {}, "in 1 records is not a class id"),
    "unnamed": (hub_table([b""] * 4, names=CLASSES).set_column(1, "label", pa.array([0, 1, 2, 3])),
                {}, "label 3, but the data names 3 classes"),
    "other_class": (pa.table({"label": ["a", "b"]}), {"classes": ["a"]},
                    "class 'b' is not among the 1 classes"),
    "key_twice": (pa.table({"k": ["a", "b", "a"]}), {"key_column": "k"},
                  "key_column 'k': key 'a' stands twice, in the records 0 and 2"),
    "no_key": (pa.table({"k": ["a", None]}), {"key_column": "k"},
               "record 1: column 'k' has no key"),
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
def test_tables_that_cannot_be_what_is_said(put, case):
    table, options, message = TABLES[case]
    storage = put(table)(**options)
    with pytest.raises(ValueError, match=message) as error:
        len(storage)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{storage.name} {storage.path}")


@pytest.mark.parametrize("storage", [ParquetStorage, ArrowStorage])
def test_wrong_paths(tmp_path, storage):
    for path, message in (
        (f"no.{storage.name}", "nothing there; set dataset.storage.path"),
        ("no-*", "no file found"),
        ("", f"no file found; expected a file, a folder of .{storage.name}"),
    ):
        with pytest.raises(ValueError, match=message):
            len(storage(str(tmp_path / path)))
    (tmp_path / f"gone.{storage.name}").symlink_to("nowhere")
    with pytest.raises(ValueError, match="No such file"):
        len(storage(str(tmp_path)))
    os.unlink(tmp_path / f"gone.{storage.name}")
    odd = tmp_path / f"[1]*.{storage.name}"
    WRITE[storage.name][0](hub_table([b"x"]), str(odd))
    assert len(storage(str(odd))) == 1, "a file that is there is no pattern"

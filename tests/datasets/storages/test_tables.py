"""Parquet and Arrow: values of every type, the roles of columns, and tables that are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.sample import Record
from tests.contracts.storage import check_storage, read_all
from tests.datasets.storages.checks import check_with_copy, refusal
from tests.datasets.storages.tables import (
    CLASSES,
    FORMS,
    hub_records,
    hub_table,
    images,
    odd_columns,
)


@pytest.fixture(params=FORMS)
def put(request, tmp_path):
    """Write a table as a file, and return the function that opens it, or its folder."""
    write, storage = FORMS[request.param]

    def opener(table, name="a"):
        path = tmp_path / f"{name}.{request.param}"
        write(table, path, 2)
        return lambda *, folder=False, **more: storage(str(tmp_path if folder else path), **more)

    return opener


STREAM = {"new": pa.ipc.new_stream}
WRITTEN = [("parquet", {}), ("parquet", {"compression": "zstd"}), ("arrow", {}), ("arrow", STREAM),
           ("arrow", {"compression": "zstd"}),
           ("arrow", STREAM | {"compression": "zstd"})]  # fmt: skip


@pytest.mark.parametrize(("form", "options"), WRITTEN)
def test_contract_over_shards_in_folders(tmp_path, form, options):
    write, storage = FORMS[form]
    encoded = images(64)
    parts = (encoded[:33], 7), (encoded[33:33], 10), (encoded[33:], 100)
    (tmp_path / "set/data").mkdir(parents=True)
    (tmp_path / "set/README.md").write_text("nothing")
    for n, (part, rows) in enumerate(parts):
        ending = storage.form_class.endings[n % len(storage.form_class.endings)]
        write(hub_table(part), tmp_path / f"set/data/x-{n}{ending}", rows, **options)
    check_with_copy(
        storage,
        tmp_path / "set",
        hub_records(encoded[:33]) + hub_records(encoded[33:], start=33),
        copied="data/x-*",
        processes=("forked",) if options else ("forked", "new"),
    )
    assert storage(str(tmp_path / "set")).index.class_names == CLASSES


def test_columns_of_many_types(put):
    table, records = odd_columns()
    at = put(table)
    named = {"image_column": "picture", "label_column": "kind", "key_column": "name"}
    check_storage(lambda: at(**named), records, processes=("forked",))
    assert at(**named).index.class_names == ("cat", "dog")
    few = at(image_column="picture", columns=["flag"])
    assert few.read(np.array([1]))[0] == Record(1, "00000001", {"image": b"two", "flag": False})


def test_writing_to_a_record_leaves_the_cache_unchanged(put):
    storage = put(odd_columns()[0])(columns=["boxes", "matrix", "ragged"])
    for _ in range(2):
        first, second = storage.read(np.array([0, 0]))
        for name, value in (("boxes", 1), ("matrix", 1), ("ragged", 1)):
            assert first.fields[name].ravel()[0] == value
            first.fields[name][:] = 9
            assert second.fields[name].ravel()[0] == value


def test_tensors(put):
    straight = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for values in (straight, straight.transpose(0, 2, 1)):
        storage = put(pa.table({"volume": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}))()
        found = np.stack([record.fields["volume"] for record in read_all(storage)])
        assert found.dtype == np.float32 and np.array_equal(found, values)


@pytest.mark.parametrize("index", [pa.int8(), pa.uint32()])
def test_views_and_dictionaries_of_texts(put, index):
    image = pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())])
    columns = {
        "key": pa.array(["one", "a text beyond 12 bytes"], pa.string_view()),
        "label": pa.array(["y", "x"], pa.string_view()),
        "image": pa.array([{"bytes": b"1"}, {"bytes": b"2"}], image),
        "code": pa.DictionaryArray.from_arrays(pa.array([0, None], index), pa.array(["u"])),
    }
    at = put(pa.table(columns))
    assert [(r.key, r.fields) for r in read_all(at())] == [
        ("one", {"image": b"1", "code": "u", "label": 1}),
        ("a text beyond 12 bytes", {"image": b"2", "code": None, "label": 0}),
    ]
    assert at().take(np.arange(2), {"code"})["code"].tolist() == ["u", None]


def test_an_integer_that_a_float_would_round_is_bad(put):
    values = pa.array([1, None, (1 << 53) + 1, 1 << 60])
    storage = put(pa.table({"x": values}))()
    one, missing, rounded, exact = read_all(storage)
    assert [one.fields["x"], exact.fields["x"]] == [1.0, 2.0**60]
    assert np.isnan(missing.fields["x"]) and str((1 << 53) + 1) in rounded.cause
    assert storage.take(np.arange(4), {"x"}) is None


def test_an_image_that_is_not_in_the_file_is_bad(put):
    records = read_all(put(hub_table([b"1", None, b"3"]))())
    assert [r.fields["image"] for r in records if isinstance(r, Record)] == [b"1", b"3"]
    assert "column 'image': lacks image bytes" in records[1].cause


LABELS = [
    ([3, 0, 1], {}, [3, 0, 1], ("0", "1", "2", "3")),
    (["b", "10", "a"], {}, [2, 0, 1], ("10", "a", "b")),
    (["b", "a"], {"classes": ["a", "x", "b"]}, [2, 0], ("a", "x", "b")),
]


@pytest.mark.parametrize(("values", "given", "ids", "names"), LABELS)
def test_labels(put, values, given, ids, names):
    index = put(pa.table({"label": values}))(**given).index
    assert (index.column("label").tolist(), index.class_names) == (ids, names)


def test_labels_of_the_hub_and_of_other_columns(put):
    index = put(hub_table([b""] * 2))(classes=["dog", "x", "cat"]).index
    assert (index.column("label").tolist(), index.class_names) == ([2, 0], ("dog", "x", "cat"))
    lists = put(pa.table({"label": [[1, 0], [0, 1]]}))()
    assert lists.index.class_names is None, "several labels are a field as any other"
    assert lists.read(np.array([1]))[0].fields["label"].tolist() == [0, 1]


def test_class_names_of_files_are_united_and_apply_to_files_without_names(put):
    put(hub_table([b""] * 3, names=("a", "c", "b")))
    put(hub_table([b""] * 2, names=("d", "a")), "b")
    at = put(hub_table([b""] * 2).replace_schema_metadata(None), "c")
    index = at(folder=True).index
    assert index.class_names == ("a", "b", "c", "d")
    assert index.column("label").tolist() == [0, 2, 1, 3, 0, 0, 2]
    for label in (-1, 2):
        table = hub_table([b""] * 2, names=("d", "a"))
        put(table.set_column(1, "label", pa.array([0, label])), "b")
        refusal(at(folder=True), "labels from .*: a file names 2 classes")
    put(hub_table([b""] * 3, names=("a", "c", "b")), "b")
    assert at(folder=True).index.class_names == ("a", "c", "b"), "in the order of their numbers"


def test_files_of_one_set_have_the_same_columns(put):
    put(pa.table({"x": [1], "y": [1]}))
    at = put(pa.table({"x": [1.5], "y": [1]}), "b")
    refusal(at(folder=True), r"b\.\w+: 'x' is double, expected int64 as in the first file")
    assert len(at(folder=True, columns=["y"])) == 2
    for table, message in (
        (pa.table({"x": [1]}), r"b\.\w+: 'y' is missing"),
        (pa.table({"x": [1], "y": [1], "key": ["a"]}), r"b\.\w+: 'key' is key, expected None"),
    ):
        refusal(put(table, "b")(folder=True), message)
    put(pa.table({"x": [1, None], "y": [1, 2]}))
    counts = read_all(put(pa.table({"x": [2], "y": [1]}), "b")(folder=True))
    assert [type(record.fields["x"]) for record in counts] == [float] * 3


SEQUENCES = pa.table(
    {
        "tokens": pa.array([[1, 2], [], None, [3, 4, 5]], pa.list_(pa.int16())),
        "audio": pa.array([[1.0] * n for n in (9, 8, 7, 6)], pa.large_list(pa.float32())),
        "count": pa.array([5, 4, 0, 2], pa.uint8()),
    }
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2, 0, 0, 3]),
        ({"length_column": "count"}, [5, 4, 0, 2]),
        ({"length_column": "audio", "columns": ["count"]}, [9, 8, 7, 6]),
    ],
)
def test_lengths_are_counted(put, options, expected):
    put(SEQUENCES)
    index = put(SEQUENCES, "b")(folder=True, **options).index
    assert index.column("length").tolist() == expected * 2


def test_without_a_list_of_tokens_nothing_is_counted(put):
    assert "length" not in put(SEQUENCES)(columns=["audio"]).index.columns


TABLES = {
    "no_label": (pa.table({"image": [b"1"]}), {"label_column": "label"},
                 "no column 'label', expected one; columns: image"),
    "float_label": (pa.table({"x": [1.5]}), {"label_column": "x"},
                    "label column 'x' is double, expected integers or text"),
    "no_label_value": (pa.table({"label": [1, None, 2]}), {},
                       "column 'label' lacks a label in record 1 .1 in all"),
    "negative": (pa.table({"label": [1, -1]}), {}, "record 1: the label is missing \\('-1'\\)"),
    "unnamed": (hub_table([b""] * 4, names=CLASSES).set_column(1, "label", pa.array([0, 1, 2, 3])),
                {}, "labels from 0 to 3, expected 0 to 2"),
    "key_twice": (pa.table({"k": ["a", "b", "a"]}), {"key_column": "k"},
                  "key 'a' stands twice, in record 0 and record 2"),
    "no_key": (pa.table({"k": ["a", None]}), {"key_column": "k"},
               "column 'k' lacks a key in record 1"),
    "float_key": (pa.table({"k": [1.5]}), {"key_column": "k"}, "is double, expected text"),
    "two_images": (pa.table({"image": [b""], "p": [b""]}), {"image_column": "p"},
                   "column 'image' has a name that samples use"),
    "no_length": (SEQUENCES, {"length_column": "words"}, "no column 'words', expected one"),
    "text_length": (pa.table({"x": ["a"]}), {"length_column": "x"}, "is string, expected lists"),
    "no_rows": (pa.table({"x": pa.array([], pa.int64())}), {}, "no row in 1 files"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_contradict_their_options(put, case):
    table, options, message = TABLES[case]
    storage = put(table)(**options)
    assert refusal(storage, message).startswith(f"{storage.name} {storage.path}")

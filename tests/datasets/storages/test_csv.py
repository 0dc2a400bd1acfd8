"""CSV: types, missing values, images beside the file, paths that lead elsewhere, damage."""

import csv
import math
import os
import pickle
import shutil

import numpy as np
import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.columnar import group as group_module
from penstock.datasets.storages import csv as storage_module
from penstock.datasets.storages.csv import CsvStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all

rng = np.random.default_rng(0)


def put(path, rows, *, images=(), **options):
    """Write rows by the library's writer, and image files beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        csv.writer(file, **options).writerows(rows)
    for name in images:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(name.encode())
    return str(path)


ROWS = [
    ["image", "label", "caption", "age", "score", "zip"],
    ["i/a.jpg", "dog", 'says "hi",\nthen', "3", "1.5", "007"],
    ["i/b ü.jpg", "cat", "ünï", "-4", "2", "12"],
    ["i/c.jpg", "dog", "", "5", "1e3", "3"],
]
NAMES = ["i/a.jpg", "i/b ü.jpg", "i/c.jpg"]
FIELDS = [
    {"label": 1, "caption": 'says "hi",\nthen', "age": 3, "score": 1.5, "zip": "007"},
    {"label": 0, "caption": "ünï", "age": -4, "score": 2.0, "zip": "12"},
    {"label": 1, "caption": None, "age": 5, "score": 1000.0, "zip": "3"},
]


def expected(fields=FIELDS):
    return [
        (name, {"image": name.encode(), **row}) for name, row in zip(NAMES, fields, strict=True)
    ]


@pytest.mark.parametrize("written", [{}, {"lineterminator": "\n", "encoding": "utf-8-sig"},
                                     {"quoting": csv.QUOTE_ALL}])  # fmt: skip
def test_contract(tmp_path, written):
    path = put(tmp_path / "a/t.csv", ROWS, images=NAMES, **written)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: CsvStorage(path),
        expected(),
        make_copy=lambda: CsvStorage(str(tmp_path / "b/t.csv")),
        processes=("forked",) if written else ("forked", "new"),
    )
    assert CsvStorage(path).index.class_names == ("cat", "dog")
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 8, "nothing is written there"


def test_contract_with_images_that_are_gone(tmp_path):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES)
    os.unlink(tmp_path / NAMES[1])
    want = [(key, None if key == NAMES[1] else fields) for key, fields in expected()]
    check_storage(lambda: CsvStorage(path), want, processes=("new",))


def test_types_and_missing_values(tmp_path):
    rows = [
        ["n", "x", "s", "big", "e"],
        ["1", "0.5", "a", "9" * 25, ""],
        ["NA", "nan", "", "1", ""],
    ]
    path = put(tmp_path / "t.tsv", rows, delimiter="\t")
    first, second = (r.fields for r in CsvStorage(path).read(np.arange(2)))
    assert first | {"e": 0} == {"n": 1.0, "x": 0.5, "s": "a", "big": 1e25, "e": 0}
    assert math.isnan(second["n"]) and math.isnan(second["x"]) and math.isnan(second["e"])
    assert second["s"] is None
    typed = CsvStorage(path, types={"x": "str", "e": "str"}, missing=("",)).read(np.arange(2))
    assert [r.fields["x"] for r in typed] == ["0.5", "nan"]
    assert [r.fields["n"] for r in typed] == ["1", "NA"]
    codes = put(tmp_path / "c.csv", [["c", "d"], ["007", "007"], ["1_0", "3"]])
    record, _ = CsvStorage(codes, types={"d": "int"}).read(np.arange(2))
    assert record.fields == {"c": "007", "d": 7}
    with pytest.raises(ValueError, match="line 3: '1_0' is no float"):
        len(CsvStorage(codes, types={"c": "float"}))
    assert [r.fields["e"] for r in typed] == [None, None]
    assert [r.key for r in typed] == ["00000000", "00000001"]


@pytest.mark.parametrize("rows", [100, 5000])  # in one block of rows, and in several
def test_a_text_amid_numbers_is_told_at_every_start(tmp_path, caplog, rows):
    ages = [[str(n), f"{n}.5", "a", f"{n:05}", "b" if n % 10 else "7"] for n in range(rows)]
    ages[rows // 2][0] = "unknown"
    path = put(tmp_path / "t.csv", [["age", "height", "name", "zip", "kind"], *ages])
    for _ in range(2):
        assert CsvStorage(path).read(np.array([1]))[0].fields["age"] == "1"
        [said] = [record.message for record in caplog.records]
        assert f"csv {path}: column 'age' is taken as text: line {rows // 2 + 2} has 'unkn" in said
        assert "dataset.storage.types.age=str" in said
        len(CsvStorage(path))
        assert len(caplog.records) == 1, "both splits may open it"
        caplog.clear()
        storage_module._warn_once.cache_clear()
    for options in ({"types": {"age": "str"}}, {"missing": ("unknown",)}):
        assert len(CsvStorage(path, **options)) == rows and not caplog.records


def test_columns_keys_and_labels(tmp_path):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES)
    storage = CsvStorage(path, key_column="caption", columns=["age"], missing=("no",))
    records = storage.read(np.arange(3))
    assert [r.key for r in records] == ['says "hi",\nthen', "ünï", ""]
    assert records[0].fields == {"image": b"i/a.jpg", "label": 1, "age": 3}
    ids = CsvStorage(path, label_column="age", columns=[], classes=["5", "3", "x"])
    with pytest.raises(ValueError, match="label -4 in record 1, expected 0 or more"):
        len(ids)
    named = CsvStorage(path, classes=["dog", "x", "cat"])
    assert named.index.column("label").tolist() == [0, 2, 0]
    assert [r.fields["label"] for r in named.read(np.arange(3))] == [0, 2, 0]
    numbered = put(tmp_path / "n.csv", [["x", "label"], ["a", "10"], ["b", "2"]])
    index = CsvStorage(numbered).index
    assert (index.column("label").tolist(), len(index.class_names)) == ([10, 2], 11)


def test_absolute_paths_are_taken_below_the_root(tmp_path):
    photo = tmp_path / "photos/a.jpg"
    path = put(tmp_path / "tables/t.csv", [["image"], [str(photo)]])
    with pytest.raises(ValueError, match=rf"out of its folder {tmp_path}/tables; .*type dataset.s"):
        len(CsvStorage(path))
    for root in ("/", str(tmp_path)):
        [bad] = CsvStorage(path, root=root).read(np.arange(1))
        assert bad.cause == f"cannot be read: No such file or directory: {photo}"
    put(tmp_path / "photos/x.csv", [], images=["a.jpg"])
    [record] = CsvStorage(path, root=str(tmp_path / "photos")).read(np.arange(1))
    assert (record.key, record.fields["image"]) == (str(photo), b"a.jpg")


HOSTILE = ["../secret.jpg", "i/../../secret.jpg", "/etc/passwd", "..", "a\0b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_paths_that_leave_the_folder_are_refused(tmp_path, name):
    path = put(tmp_path / "d/t.csv", [["image"], ["ok.jpg"], [name]])
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    with pytest.raises(ValueError, match=r"line 3: '.*' leads out of its folder") as error:
        len(CsvStorage(path))
    assert "\n" not in str(error.value)


def test_links_that_leave_the_folder_are_bad_unless_allowed(tmp_path):
    path = put(tmp_path / "d/t.csv", [["image"], ["in.jpg"], ["out.jpg"], ["up/x.jpg"]],
               images=["real.jpg"])  # fmt: skip
    (tmp_path / "x.jpg").write_bytes(b"x")
    (tmp_path / "d/in.jpg").symlink_to("real.jpg")
    (tmp_path / "d/out.jpg").symlink_to("/etc/passwd")
    (tmp_path / "d/up").symlink_to("..")
    good, *bad = CsvStorage(path).read(np.arange(3))
    assert good.fields["image"] == b"real.jpg"
    assert ["by a link" in record.cause for record in bad] == [True, True]
    (tmp_path / "links").symlink_to(tmp_path / "d")
    below = CsvStorage(str(tmp_path / "links/t.csv")).read(np.arange(1))
    assert below[0].fields["image"] == b"real.jpg", "the folder itself may be a link"
    allowed = CsvStorage(path, follow_symlinks=True).read(np.arange(3))
    assert allowed[2].fields["image"] == b"x"


FILES = {
    "empty": (b"", {}, "it is empty; write a first line"),
    "header": (b"image,label\n", {}, "it has a header and no row"),
    "no_label": (b"image\na.jpg\n", {"label_column": "label"}, "no column 'label'; columns: im"),
    "no_type": (b"image\na.jpg\n", {"types": {"x": "int"}}, "types: no column 'x'"),
    "column_twice": (b"a,b,a\n1,2,3\n", {}, "line 1: column 'a' stands twice"),
    "long_row": (b"a,b\n1,2\n1,2,3\n", {}, "line 3: got 3 values, expected 2"),
    "short_row": (b'a,b\n"x\ny",2\n1\n', {}, "line 4: got 1 values, expected 2"),
    "open_quote": (b'a,b\n1,2\n"3,4\n', {}, "cannot be read as a CSV"),
    "bad_quote": (b'a,b\n"1"2,3\n', {}, "line 2: cannot be read as a CSV"),
    "latin": ("a\nü\n".encode("latin-1"), {}, "cannot be read as a CSV in UTF-8"),
    "binary": (b"\x00\xff\x00" * 50, {}, "cannot be read as a CSV in UTF-8"),
    "label": (b"a,label\n1,x\n2,\n", {}, "line 3: the label is missing"),
    "labels": (b"a,label\n1,x\n", {"classes": ["y"]}, "class 'x' is not among the 1 classes"),
    "key": (b"image\na.jpg\nb.jpg\na.jpg\n", {}, "'a.jpg' stands twice, in the records 0 and 2"),
    "no_key": (b"k\na\nNA\n", {"key_column": "k"}, "line 3: column 'k' has no key"),
    "type": (b"a\n1\nx\n", {"types": {"a": "int"}}, "line 3: 'x' is no int"),
    "int_missing": (b"a,b\n,2\n", {"types": {"a": "int"}}, "which int cannot hold; use float"),
    "reserved": (b"index\n1\n", {}, "'index' has a name that samples use for something else"),
    "huge": (b"a,b\n1,x\n2," + b"x" * (1 << 26), {}, "cannot be read as a CSV in UTF-8"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read(tmp_path, case):
    content, options, message = FILES[case]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        len(CsvStorage(str(tmp_path / "t.csv"), **options))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"csv {tmp_path}/t.csv: ")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_first_line_without_commas_has_another_delimiter(tmp_path, delimiter):
    rows = [["name", "text", "label"], ["1", "a,b", "x"], ["2", "c", "y"]]
    path = put(tmp_path / "t.csv", rows, delimiter=delimiter)
    found = [record.fields for record in read_all(CsvStorage(path))]
    assert found == [{"name": 1, "text": "a,b", "label": 0}, {"name": 2, "text": "c", "label": 1}]


def test_wrong_paths(tmp_path):
    with pytest.raises(ValueError, match="expected a CSV file, got nothing there"):
        len(CsvStorage(str(tmp_path / "no.csv")))
    with pytest.raises(ValueError, match=r"got a folder; set dataset.storage.path to a file, or"):
        len(CsvStorage(str(tmp_path)))
    with pytest.raises(ValueError, match="delimiter 'ab', expected one character"):
        CsvStorage("t.csv", delimiter="ab")


def test_a_row_without_an_image_is_a_bad_record(tmp_path):
    rows = [["image", "k"], ["i/a.jpg", "1"], ["", "2"]]
    path = put(tmp_path / "t.csv", rows, images=NAMES)
    good, bad = CsvStorage(path, key_column="k").read(np.arange(2))
    assert good.fields["image"] == b"i/a.jpg"
    assert bad.cause == "its row lacks an image, expected its bytes, or the path of a file"


def test_a_run_goes_on_with_the_file_that_it_opened(tmp_path):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES)
    storage = CsvStorage(path)
    before = storage.read(np.arange(3))
    put(tmp_path / "t.csv", ROWS[:2])
    assert storage.read(np.arange(3)) == before
    os.unlink(path)
    elsewhere = pickle.loads(pickle.dumps(storage))
    assert elsewhere.read(np.arange(3)) == before
    os.unlink(tmp_path / NAMES[0])
    assert "No such file" in elsewhere.read(np.array([0]))[0].cause


def test_a_second_start_reads_the_file_again_only_if_it_changed(tmp_path, monkeypatch):
    path = put(tmp_path / "t.csv", ROWS)
    first = CsvStorage(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(storage_module, "_Parser", None)
        assert CsvStorage(path).fingerprint() == first
    put(tmp_path / "t.csv", ROWS[:3])
    assert len(CsvStorage(path)) == 2


def test_a_damaged_copy_is_made_anew(tmp_path):
    path = put(tmp_path / "t.csv", ROWS, images=NAMES)
    storage = CsvStorage(path)
    before = read_all(storage)
    [copy] = storage._files.parsed.values()
    os.chmod(copy, 0o600)
    os.truncate(copy, 100)
    assert read_all(CsvStorage(path)) == before


def test_many_different_texts_are_columns(tmp_path, monkeypatch):
    texts = ["b", "a", "", "b", "c", "é"]
    path = put(tmp_path / "t.csv", [["n", "s"], *([n, text] for n, text in enumerate(texts))])
    for most in (3, 9):
        monkeypatch.setattr(storage_module, "_MOST_TEXTS", most)
        monkeypatch.setattr(group_module, "_MOST_TEXTS", most)
        storage = CsvStorage(path, missing=("", str(most)))
        for rows in (np.arange(6), np.array([3, 1, 3]), np.array([2])):
            wanted = [texts[row] or None for row in rows]
            assert [record.fields["s"] for record in storage.read(rows)] == wanted
            assert storage.take(rows, {"s"})["s"].tolist() == wanted


def test_a_flipped_bit_anywhere_is_an_error_or_stays_in_its_row(tmp_path):
    path = put(tmp_path / "t.csv", [["k", "s"], *([f"{i:03d}", f"text {i}"] for i in range(40))])
    refused = 0
    for _ in flipped(path, rng.integers(0, os.path.getsize(path), 200), rng):
        records = unless_refused(lambda: read_all(CsvStorage(path)))
        refused += records is None
        assert not any(isinstance(record, BadRecord) for record in records or [])
    assert refused > 10

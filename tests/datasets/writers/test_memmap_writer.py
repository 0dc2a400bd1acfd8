"""Arrays as they are written in parts."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.storages.memmap.storage import MemmapStorage
from penstock.datasets.storages.memmap.writer import MemmapWriter
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import ListedRecords, check_writer


def small() -> MemmapWriter:
    writer = MemmapWriter()
    writer.part_records = 5
    return writer


def test_contract(tmp_path):
    check_writer(small, tmp_path)


def pixels(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)


def test_numpy_alone_reads_it(tmp_path):
    records = {str(i): {"image": pixels(3, 4, 3) + i, "label": i % 2, "x": i / 2} for i in range(9)}
    write_storage(small(), tmp_path / "a", ListedRecords(records, ("a", "b")))
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == [
        "classes.txt", "images.npy", "labels.npy", "x.npy"]  # fmt: skip
    images = np.load(tmp_path / "a/images.npy")
    assert np.array_equal(images, np.stack([r["image"] for r in records.values()]))
    assert np.load(tmp_path / "a/x.npy").tolist() == [i / 2 for i in range(9)]


REFUSALS = [
    ({"a": {"image": b"jpeg"}}, r"image' of 'a' is a bytes.*pack.raw=1"),
    ({"a": {"image": pixels(3, 4, 3)}, "b": {"image": pixels(4, 4, 3)}},
     r"uint8 \[3, 4, 3\] in 'a' and uint8 \[4, 4, 3\] in 'b'"),
    ({"a": {"image": pixels(3, 4, 2)}}, "expected uint8"),
    ({"a": {"x": 1}, "b": {"x": 1.0}}, "'x' is a int in 'a' and a float in 'b'"),
    ({"a": {"x": 1}, "b": {"x": 1, "y": 1}}, "'b' has a field 'y' and 'a' has none"),
    ({"a": {"x": "text"}}, "field 'x' of 'a' is a str"),
    ({"a": {"key": 1}}, "would be a field 'key'"),
    ({"a": {"x": 1 << 70}}, "field 'x'"),
    ({"a\nb": {"x": 1}}, "has a line break"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "cause"), REFUSALS)
def test_what_no_array_holds(tmp_path, records, cause):
    with pytest.raises(ValueError, match=cause) as error:
        write_storage(small(), tmp_path / "a", ListedRecords(records))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_shape_that_no_sample_shows_is_refused_too(tmp_path):
    records = {str(i): {"image": pixels(3, 4, 3)} for i in range(60)}
    records["13"] = {"image": pixels(4, 4, 3)}
    with pytest.raises(ValueError, match="in '13'"):
        write_storage(small(), tmp_path / "a", ListedRecords(records))


def test_keys_that_are_not_as_many_as_rows_are_refused(tmp_path):
    records = {f"k{i}": {"x": i} for i in range(4)}
    write_storage(small(), tmp_path / "a", ListedRecords(records))
    keys = tmp_path / "a/keys.txt"
    storage = MemmapStorage(str(tmp_path / "a"))
    assert storage.index.keys(np.arange(4)) == list(records)
    for content in ("k0\nk1\nk2\n", "k0\nk1\nk1\nk3\n", "", "k0\nk1\nk2\nk3\nk4\n"):
        keys.write_text(content)
        with pytest.raises(ValueError, match=r"keys.txt has \d different lines for 4 rows"):
            len(MemmapStorage(str(tmp_path / "a")))
    keys.write_text("d\nc\nb\na")
    assert MemmapStorage(str(tmp_path / "a")).index.keys(np.arange(4)) == list("dcba")

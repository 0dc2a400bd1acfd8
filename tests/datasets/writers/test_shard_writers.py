"""Arrays, shards of arrays and of tensors: the view of other programs, and refused records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.datasets.storages.arrays import MemmapWriter, NpyShardsWriter, PtShardsWriter
from penstock.datasets.writing import write_storage
from tests.contracts.records import ListedRecords

WRITERS = [NpyShardsWriter, PtShardsWriter]


def small(kind):
    writer = kind()
    writer.part_records = 5
    return writer


def listed(values, field="x", **more):
    return ListedRecords({f"k{i}": {field: value, **more} for i, value in enumerate(values)})


def test_other_programs_open_shards(tmp_path):
    source = ListedRecords(
        {f"k{i}": {"volume": np.full((2, 3), i), "age": i, "label": 0} for i in range(7)}, ["one"]
    )
    write_storage(small(NpyShardsWriter), tmp_path / "npy", source)
    write_storage(small(PtShardsWriter), tmp_path / "pt", source)
    wanted = {"volume": np.stack([np.full((2, 3), i) for i in (5, 6)]), "age": np.array([5, 6])}
    saved = torch.load(tmp_path / "pt/00001.pt", weights_only=True)
    for name, array in wanted.items():
        assert np.array_equal(np.load(tmp_path / f"npy/{name}_00001.npy"), array)
        assert np.array_equal(saved[name].numpy(), array)
    assert np.load(tmp_path / "npy/key_00001.npy").tolist() == saved["key"] == ["k5", "k6"]
    for folder in ("npy", "pt"):
        assert (tmp_path / folder / "classes.txt").read_text() == "one\n"


def pixels(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)


def test_numpy_opens_memmap_arrays(tmp_path):
    records = {str(i): {"image": pixels(3, 4, 3) + i, "label": i % 2, "x": i / 2} for i in range(9)}
    write_storage(small(MemmapWriter), tmp_path / "a", ListedRecords(records, ("a", "b")))
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == [
        "classes.txt", "images.npy", "labels.npy", "x.npy"]  # fmt: skip
    images = np.load(tmp_path / "a/images.npy")
    assert np.array_equal(images, np.stack([r["image"] for r in records.values()]))
    assert np.load(tmp_path / "a/x.npy").tolist() == [i / 2 for i in range(9)]


LATE = [{"image": pixels(3 + (i == 13), 4, 3)} for i in range(60)]  # the writer looks at a few


@pytest.mark.parametrize("kind", [*WRITERS, MemmapWriter])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (listed([1], "images"), "rename it"),
        (listed([1], "a b"), "expected a name of letters"),
        (listed([np.ones(2), np.ones(3)]), "float64 [3] in 'k1'"),
        (listed([1 << 70]), "field 'x' is a int in 'k0'"),
        (listed([np.ones(2, np.longdouble)]), "field 'x' is float128 [2] in 'k0'"),
        (listed(["text"]), "pack it as lmdb"),
        (ListedRecords({"a": {"x": 0}, "b": {"y": 1}}), "missing in 'b'"),
        (ListedRecords({"a": {"label": 0}}, ["two\nlines"]), "has a line break"),
        (ListedRecords({"a": {"label": 1}}, ["one", "two "]), "class name 'two '"),
        (ListedRecords({"a": {"label": 0}}, [""]), "class name ''"),
        (ListedRecords({"a\0": {"x": 0}}), "the key b'a\\x00'"),
        (ListedRecords({str(i): fields for i, fields in enumerate(LATE)}), "in '13'"),
    ],
)
def test_records_that_arrays_cannot_hold_are_refused(tmp_path, kind, source, said):
    with pytest.raises(ValueError) as error:
        write_storage(small(kind), tmp_path / "out", source)
    assert said in str(error.value) and "\n" not in str(error.value)

"""Shards of arrays and of tensors as they are written in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.datasets.storages.npy_shards import NpyShardsWriter
from penstock.datasets.storages.pt_shards import PtShardsWriter
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import (
    ListedRecords,
    assert_equal_records,
    check_writer,
    open_written,
)

WRITERS = [NpyShardsWriter, PtShardsWriter]


def small(kind):
    writer = kind()
    writer.part_records = 5
    return writer


@pytest.mark.parametrize("kind", WRITERS)
def test_contract(tmp_path, kind):
    check_writer(lambda: small(kind), tmp_path)


def listed(values, field="x", **more):
    return ListedRecords({f"k{i}": {field: value, **more} for i, value in enumerate(values)})


def test_other_programs_open_them(tmp_path):
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


@pytest.mark.parametrize("kind", WRITERS)
def test_arrays_of_one_shape_are_taken_as_columns_again(tmp_path, kind):
    images = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), np.uint8)
    source = ListedRecords(
        {str(i): {"image": image, "label": i % 2} for i, image in enumerate(images)}, ["a", "b"]
    )
    write_storage(small(kind), tmp_path / "out", source)
    storage = open_written(kind(), tmp_path / "out")
    assert set(storage.column_fields) == {"image", "label"}
    assert np.array_equal(storage.take(np.array([11, 0]), {"image"})["image"], images[[11, 0]])
    assert storage.index.column("height").tolist() == [5] * 12


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    "values",
    [
        [float("nan"), float("inf"), -0.0, 1e300, 5e-324, 1.0, 2.0],
        [np.arange(3, dtype=">u2") + i for i in range(7)],
        [np.ones((1, 2), "<c8")] * 7,
        [i % 2 == 0 for i in range(7)],
    ],
)
def test_odd_values_come_back(tmp_path, kind, values):
    write_storage(small(kind), tmp_path / "out", listed(values))
    assert_equal_records(open_written(kind(), tmp_path / "out"), listed(values))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (listed([1], "images"), "'images' would be read as 'image'; rename it"),
        (listed([1], "a b"), "would be a field 'a b', expected a name of letters"),
        (listed([1], "epoch"), "would be a field 'epoch'"),
        (listed([np.ones(2), np.ones(3)]), "'x' is float64 [2] in 'k0' and float64 [3] in 'k1'"),
        (listed([np.ones(2), np.ones(2, np.float32)]), "and float32 [2] in 'k1'"),
        (listed([object()]), "field 'x' of 'k0' is a object"),
        (listed([1 << 70]), "field 'x' of 'k0' is a int"),
        (listed([np.array(1)]), "field 'x' of 'k0' is int64 []"),
        (listed(["text"]), "pack it as lmdb"),
        (listed([np.ones((2, 2), np.float32)], "image"), "'k0' is float32 [2, 2], expected uint8"),
        (listed([-1], "label"), "a label is -1, expected class ids from 0 on"),
        (ListedRecords({"a": {"x": 0}, "b": {"y": 1}}), "'a' has a field 'x' and 'b' has none"),
        (ListedRecords({"a": {"label": 0}}, ["two\nlines"]), "has more than one line"),
    ],
)
def test_what_cannot_be_held(tmp_path, kind, source, text):
    with pytest.raises(ValueError) as error:
        write_storage(kind(), tmp_path / "out", source)
    assert text in str(error.value) and "\n" not in str(error.value)


def test_types_that_torch_has_not(tmp_path):
    source = listed([np.ones(2, np.longdouble)])
    with pytest.raises(ValueError, match="holds float128, a type that torch lacks"):
        write_storage(PtShardsWriter(), tmp_path / "out", source)
    write_storage(NpyShardsWriter(), tmp_path / "out", source)

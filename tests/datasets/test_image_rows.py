"""Images written into the memory of the batch to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.core.sample import BadSample
from penstock.datasets.map_dataset import MapDataset
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.datasets.test_eager import eager
from tests.datasets.test_map_dataset import STEPS, fetch, storage
from tests.memory_storage import MemoryStorage

INDICES = np.array([7, 1, 2, 0, 5, 7, 3, 6, 4, 0, 1, 3, 6, 7, 0, 1, 3, 4, 6, 7], np.int64)
POSITIONS = np.arange(30, 50)
BLUR = {"_target_": "albumentations.GaussianBlur", "p": 0.5}
RESIZE = {"_target_": "transform/resize", "size": 16}


def dataset(kind: Any = MapDataset, steps: Any = STEPS) -> Any:
    transform = build_stack(steps, build_step=build_step)
    return kind(storage(), decode=ImageDecoder(), transform=transform, seed=5)


@pytest.mark.parametrize("kind", [MapDataset, eager])
@pytest.mark.parametrize(
    "steps",
    [STEPS, {**STEPS, "blur": BLUR}, {"resize": RESIZE}, {"blur": BLUR, **STEPS}],
    ids=["window", "window first", "whole", "crop later"],
)
def test_rows_hold_what_is_given_without_them(kind, steps):
    data = dataset(kind, steps)
    assert data.row_shape is None
    expected = fetch(data, INDICES, POSITIONS)
    assert data.row_shape == (16, 16, 3)
    rows = np.full((20, 16, 16, 3), 7, np.uint8)
    samples = data.finish(data.read(INDICES, POSITIONS, 0), POSITIONS, 0, rows=rows)
    assert_same(samples, expected)
    bad = [i for i, sample in enumerate(samples) if isinstance(sample, BadSample)]
    assert bad == [2, 4]
    for i, sample in enumerate(samples):
        if i not in bad:
            assert sample["image"].ctypes.data == rows[i].ctypes.data


def test_what_a_transform_keeps_is_no_row():
    kept = []

    def keeps(sample, rng):
        kept.append(sample)
        return sample

    pixels = [np.full((4, 4, 3), i, np.uint8) for i in range(8)]
    data = MapDataset(
        MemoryStorage([{"image": image} for image in pixels]),
        decode=RawDecoder(), transform=keeps, seed=0,
    )  # fmt: skip
    rows = np.zeros((8, 4, 4, 3), np.uint8)
    samples = data.finish(data.read(np.arange(8), np.arange(8), 0), np.arange(8), 0, rows=rows)
    assert np.array_equal(rows, np.stack(pixels))
    assert all(np.shares_memory(sample["image"], rows) for sample in samples)
    assert not any(np.shares_memory(sample["image"], rows) for sample in kept)


def test_what_a_step_in_the_stack_keeps_is_no_row():
    kept = []

    def build(node: dict[str, Any]) -> Any:
        if node["_target_"] != "keep":
            return build_step(node)
        return lambda sample, rng: kept.append(sample) or sample

    flip = {"_target_": "transform/center_crop", "size": 4}
    stack = build_stack({"keep": {"_target_": "keep"}, "crop": flip}, build_step=build)
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    storage = MemoryStorage([{"image": image}])
    data = MapDataset(storage, decode=RawDecoder(), transform=stack, seed=0)
    rows = np.zeros((1, 4, 4, 3), np.uint8)
    (sample,) = data.finish(data.read(np.arange(1), np.arange(1), 0), np.arange(1), 0, rows=rows)
    assert np.shares_memory(sample["image"], rows)
    assert not np.shares_memory(kept[0]["image"], rows)


def test_images_in_a_mapped_file_are_cropped_into_their_rows(tmp_path):
    mapped = np.lib.format.open_memmap(
        tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=(8, 30, 40, 3)
    )
    mapped[...] = np.random.default_rng(0).integers(0, 256, mapped.shape, np.uint8)
    transform = build_stack(STEPS, build_step=build_step)
    data = [
        MapDataset(
            MemoryStorage([{"image": image} for image in images]),
            decode=RawDecoder(), transform=transform, seed=5,
        )
        for images in (mapped, mapped.astype(np.uint8, subok=False))
    ]  # fmt: skip
    rows = np.zeros((8, 16, 16, 3), np.uint8)
    at = np.arange(8)
    samples = data[0].finish(data[0].read(at, at, 0), at, 0, rows=rows)
    assert_same(samples, fetch(data[1], at, at))
    assert all(np.shares_memory(sample["image"], rows) for sample in samples)

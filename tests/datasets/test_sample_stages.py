"""Images written to the rows of a batch: the samples equal those without rows, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.core.sample import BadRecord, BadSample, Record, Sample
from penstock.datasets.sample_stages import DecodeStage, TransformStage
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.photographs import photograph, scene

SIZE = (24, 32)
RESIZED = {"_target_": "transform/random_resized_crop", "size": list(SIZE)}
CROP = {"_target_": "transform/random_crop", "size": list(SIZE)}
SHRUNK = {"_target_": "transform/resize", "short_side": 60}
FLIP = {"_target_": "transform/horizontal_flip", "p": 0.5}
STACKS = {
    "imagenet": [RESIZED, FLIP],
    "two windows": [SHRUNK, CROP, RESIZED],
    "around boxes": [{"_target_": "transform/box_safe_crop", "size": list(SIZE)}, FLIP],
    "more behind": [RESIZED, FLIP, {"_target_": "transform/color_jitter", "p": 0.8}],
    "library": [{"_target_": "albumentations.RandomResizedCrop", "size": list(SIZE), "p": 0.5}],
    "no crop": [FLIP],
}
PHOTOGRAPH, TILED = photograph(97, 131), write_tiled(scene(130, 200), quality=95)
PROGRESSIVE = photograph(97, 131, progressive=True)


def stack(name: str) -> Stack:
    steps = {f"step {number}": dict(node) for number, node in enumerate(STACKS[name])}
    return Stack(steps, build_step=build_step)


def record(index: int) -> Record | BadRecord:
    """Return a photograph for each way of decoding, pixels, or a damaged record."""
    if index % 13 == 5:
        return BadRecord(index, f"gone {index}", "cannot be read")
    kinds = [PHOTOGRAPH, TILED, PROGRESSIVE, scene(60 + index, 90), b"no image"]
    if index % 11 == 7:  # the header is whole, and pixels are missing
        kinds = [PHOTOGRAPH[: len(PHOTOGRAPH) // 3], TILED[: len(TILED) // 3]]
    image: Any = kinds[index % len(kinds)]
    if isinstance(image, np.ndarray):
        image.flags.writeable = False
    fields: dict[str, Any] = {"image": image, "label": index}
    if index % 2:
        fields["boxes"] = np.array([[10, 12, 40, 44], [30, 5, 60, 20]], np.float32)
        fields["box_labels"] = np.array([1, 2])
    return Record(index, f"key {index}", fields)


def decoded(decoder: Any, count: int) -> Iterator[Sample | BadRecord]:
    stage = DecodeStage(decoder.defer, keys=None, storage="storage")
    return (stage(record(index)) for index in range(count))


@pytest.mark.parametrize("name", STACKS)
def test_samples_in_rows_equal_those_of_one_by_one(name):
    decoder, count = ImageDecoder(), 75
    positions = np.random.default_rng(0).permutation(count).astype(np.int64)
    stage = TransformStage(stack(name), seed=3, storage="storage")
    expected = [
        stage.each([sample], [position], 2)[0]
        for sample, position in zip(decoded(decoder, count), positions.tolist(), strict=True)
    ]
    assert sum(isinstance(sample, BadSample) for sample in expected) > 10
    rows = np.zeros((count, *SIZE, 3), np.uint8)
    samples = stage.each(decoded(decoder, count), positions, 2, rows=rows)
    assert_same(samples, expected)
    for row, sample in zip(rows, samples, strict=True):
        if not isinstance(sample, BadSample) and sample["image"].shape == row.shape:
            assert np.shares_memory(sample["image"], row)

"""Draws for several samples before the pixels of the first: the samples are those of one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.core.sample import BadRecord, BadSample, PendingImage, Record, Sample
from penstock.datasets.sample_stages import DecodeStage, TransformStage
from penstock.transforms.cpu.stack import Stack, build_stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from penstock.transforms.decode.scaled import ScaledDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.photographs import photograph, scene

SIZE = (24, 32)
RESIZED = {"_target_": "transform/random_resized_crop", "size": list(SIZE)}
CROP = {"_target_": "transform/random_crop", "size": list(SIZE)}
SHRUNK = {"_target_": "transform/resize", "short_side": 60}
CENTER = {"_target_": "transform/center_crop", "size": list(SIZE)}
FLIP = {"_target_": "transform/horizontal_flip", "p": 0.5}
STACKS = {
    "imagenet": [RESIZED, FLIP],
    "crop": [CROP, FLIP],
    "evaluation": [SHRUNK, CENTER],
    "two windows": [SHRUNK, CROP, RESIZED],
    "around boxes": [{"_target_": "transform/box_safe_crop", "size": list(SIZE)}, FLIP],
    "more behind": [RESIZED, FLIP, {"_target_": "transform/color_jitter", "p": 0.8}],
    "library behind": [RESIZED, FLIP, {"_target_": "albumentations.ColorJitter", "p": 0.8}],
    "library": [{"_target_": "albumentations.RandomResizedCrop", "size": list(SIZE), "p": 0.5}],
    "no crop": [FLIP],
}
PHOTOGRAPH, TILED = photograph(97, 131), write_tiled(scene(130, 200), quality=95)
PROGRESSIVE = photograph(97, 131, progressive=True)


def stack(name: str) -> Stack:
    steps = {f"step {number}": dict(node) for number, node in enumerate(STACKS[name])}
    return build_stack(steps, build_step=build_step)


def record(index: int) -> Record | BadRecord:
    """Photographs of all ways of decoding, pixels, and every kind of damage among them."""
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


@pytest.mark.parametrize("decoder", [ImageDecoder(), ScaledDecoder()], ids=["exact", "scaled"])
@pytest.mark.parametrize("name", STACKS)
def test_the_samples_are_those_of_one_by_one(name, decoder):
    count = 75
    positions = np.random.default_rng(0).permutation(count).astype(np.int64)
    one_by_one = TransformStage(stack(name), seed=3, storage="storage")
    expected = [
        one_by_one(sample, position, 2)
        for sample, position in zip(decoded(decoder, count), positions.tolist(), strict=True)
    ]
    assert sum(isinstance(sample, BadSample) for sample in expected) > 10
    stage = TransformStage(stack(name), seed=3, storage="storage")
    for some in (0, 1, 15, 16, 17, count):
        assert_same(stage.each(decoded(decoder, some), positions[:some], 2), expected[:some])
        rows = np.zeros((some, *SIZE, 3), np.uint8)
        samples = stage.each(decoded(decoder, some), positions[:some], 2, rows=rows)
        assert_same(samples, expected[:some])
        for row, sample in zip(rows, samples, strict=True):
            if not isinstance(sample, BadSample) and sample["image"].shape == row.shape:
                assert np.shares_memory(sample["image"], row)


def test_what_was_drawn_keeps_its_order_and_few_images_wait():
    events: list[tuple[str, int]] = []

    def pending(number: int) -> PendingImage:
        def decode(box: object) -> Any:
            events.append(("pixels", number))
            return scene(90, 120), 0, 0

        events.append(("pending", number))
        return PendingImage((90, 120, 3), decode)

    samples = ({"image": pending(number), "index": number, "key": "a"} for number in range(40))
    TransformStage(stack("imagenet"), seed=0, storage="s").each(samples, np.arange(40), 0)
    numbers = {what: [n for kind, n in events if kind == what] for what in ("pending", "pixels")}
    assert numbers["pending"] == numbers["pixels"] == list(range(40))
    assert [kind for kind, _ in events[:17]] == ["pending"] * 16 + ["pixels"]
    waiting = np.cumsum([1 if kind == "pending" else -1 for kind, _ in events])
    assert waiting.max() == 16

"""Crops of arrays and sequences: at places that the rng alone decides, alike for all fields."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.rng import KeyedRng, Stream
from penstock.transforms.cpu.excerpts import ArrayCrop, AudioCrop, TokenCrop, TokenMask
from tests.contracts.equality import assert_same
from tests.contracts.transform import check_transform

VOLUME = np.arange(4 * 5 * 6).reshape(4, 5, 6).astype(np.int16)


def rng(position: int = 0) -> np.random.Generator:
    return KeyedRng().at(0, 0, position, Stream.AUGMENT)


def sequences(length: int = 50) -> dict:
    tokens = np.arange(1, length + 1)
    return {"tokens": tokens, "features": np.stack([tokens, -tokens], 1), "label": 3}


def test_a_crop_is_a_view_of_the_array():
    places = set()
    for position in range(200):
        part = ArrayCrop(size=[None, 2, 6])({"array": VOLUME}, rng(position))["array"]
        assert part.shape == (4, 2, 6) and np.shares_memory(part, VOLUME)
        places.add(int(part[0, 0, 0]))
    assert places == {0, 6, 12, 18}
    centre = ArrayCrop(size=[2, 3], place="centre")({"array": VOLUME}, rng())["array"]
    assert_same(centre, VOLUME[1:3, 1:4])
    crop = ArrayCrop(size=[2, 3], fields=["image"])
    check_transform(crop, [{"image": VOLUME, "index": 0, "key": "a"}])


def test_silence_is_added_in_time_alone():
    crop = AudioCrop(seconds=0.5, sample_rate=10)
    assert crop({"audio": np.ones((3, 2), np.float32)}, rng())["audio"].shape == (5, 2)


def test_fields_of_one_shape_are_cropped_alike():
    mask, crop = VOLUME[..., 0] * 2, ArrayCrop(size=[2, 2], fields=["array", "mask"])
    sample = crop({"array": VOLUME, "mask": mask}, rng(5))
    assert_same(sample["mask"], sample["array"][..., 0] * 2)
    for array in (mask[:3], mask[:1, :1], mask[0]):
        with pytest.raises(ValueError, match=r"array, mask have the shapes"):
            crop({"array": VOLUME, "mask": array}, rng())
    with pytest.raises(ValueError, match="array_crop: fields='array'"):
        crop({}, rng())


def test_a_token_crop_is_any_part_and_of_all_fields_the_same():
    given, starts = sequences(), set()
    for seed in range(300):
        cut = TokenCrop(max_length=47, fields=["tokens", "features"])(given, rng(seed))
        start = int(cut["tokens"][0])
        starts.add(start)
        assert cut["tokens"].tolist() == list(range(start, start + 47))
        assert np.array_equal(cut["features"][:, 0], cut["tokens"]) and cut["label"] == 3
    assert starts == {1, 2, 3, 4}
    assert TokenCrop(max_length=50)(given, rng())["tokens"] is given["tokens"]
    first = TokenCrop(max_length=9, random=False)(given, rng(7))["tokens"]
    assert first.tolist() == [*range(1, 10)]
    later = [rng(), rng()]
    for length, draws in zip((5, 500), later, strict=True):
        TokenCrop(max_length=50)(sequences(length), draws)
    assert later[0].random() == later[1].random()


def test_masking_hides_a_share_and_leaves_the_sample_alone():
    given = sequences(5000)
    hidden = TokenMask(p=0.2, value=-1)(given, rng())["tokens"]
    assert 0.17 < (hidden == -1).mean() < 0.23 and given["tokens"].min() == 1
    assert np.array_equal(hidden[hidden != -1], given["tokens"][hidden != -1])
    rows = TokenMask(p=0.2, field="features")(given, rng())["features"]
    assert np.array_equal((rows == 0).all(1), hidden == -1), "whole elements"

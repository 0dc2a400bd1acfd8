"""Crops of arrays: parts of them and no copies, at places that the rng alone decides."""

import numpy as np
import pytest

from penstock.core.rng import KeyedRng, Stream
from penstock.transforms.cpu.array_crop import ArrayCrop
from tests.contracts.equality import assert_same
from tests.contracts.transform import check_transform

VOLUME = np.arange(4 * 5 * 6).reshape(4, 5, 6).astype(np.int16)


def crop(sample, position=0, **options):
    return ArrayCrop(**options)(sample, KeyedRng().at(0, 0, position, Stream.AUGMENT))


def test_a_crop_is_a_view_of_the_array():
    places = set()
    for position in range(200):
        part = crop({"array": VOLUME, "label": 1}, position, size=[None, 2, 6])["array"]
        assert part.shape == (4, 2, 6) and np.shares_memory(part, VOLUME)
        places.add(int(part[0, 0, 0]))
    assert places == {0, 6, 12, 18}
    centre = crop({"array": VOLUME}, size=[2, 3], place="centre")["array"]
    assert_same(centre, VOLUME[1:3, 1:4])


def test_fields_are_cropped_alike():
    mask = VOLUME[..., 0] * 2
    sample = crop({"array": VOLUME, "mask": mask}, 5, size=[2, 2], fields=["array", "mask"])
    assert_same(sample["mask"], sample["array"][..., 0] * 2)
    with pytest.raises(ValueError, match=r"array, mask have the shapes .* cannot be cropped alike"):
        crop({"array": VOLUME, "mask": mask[:3]}, size=[2], fields=["array", "mask"])


def test_shorter_arrays_are_filled_or_refused():
    filled = crop({"array": np.ones(3, np.float32)}, size=[6], fill=-1)["array"]
    assert_same(filled, np.array([-1, 1, 1, 1, -1, -1], np.float32))
    with pytest.raises(ValueError, match=r"'array' is \[3\], shorter than \[6\]; use a smaller"):
        crop({"array": np.ones(3)}, size=[6])
    with pytest.raises(ValueError, match="has nothing, expected an array of 1 axes"):
        crop({}, size=[6])
    with pytest.raises(ValueError, match="expected lengths above 0"):
        ArrayCrop(size=[0])


def test_it_is_a_transform():
    crop = ArrayCrop(size=[2, 3], fields=["image"])
    check_transform(crop, [{"image": VOLUME, "index": 0, "key": "a"}])

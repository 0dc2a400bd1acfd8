from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from penstock.core.contracts import Dataset
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadSample
from penstock.datasets.map_dataset import MapDataset
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.image import ImageDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.memory_storage import MemoryStorage

STEPS = {
    "crop": {"_target_": "transform/random_resized_crop", "size": [16, 16]},
    "flip": {"_target_": "transform/horizontal_flip", "p": 0.5},
}


def identity(sample, rng):
    return sample


def jpeg(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20 + seed, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def storage(count: int = 8) -> MemoryStorage:
    fields: list = [{"image": jpeg(i), "label": i % 3} for i in range(count)]
    fields[2] = "no such file"
    fields[5]["image"] = fields[5]["image"][:400]
    return MemoryStorage(fields)


def dataset(**options) -> MapDataset:
    stack = Stack(STEPS, build_step=build_step)
    return MapDataset(storage(), decode=ImageDecoder(), transform=stack, seed=5, **options)


def fetch(data, indices, positions, epoch=0):
    return data.fetch(np.array(indices, np.int64), np.array(positions, np.int64), epoch)


def test_samples_are_decoded_transformed_and_in_order():
    data = dataset()
    assert isinstance(data, Dataset) and len(data) == 8
    samples = fetch(data, [7, 0, 3, 0], [10, 11, 12, 13])
    assert [(s["index"], s["position"], s["key"], s["label"]) for s in samples] == [
        (i, 10 + n, f"images/{i}.jpg", i % 3) for n, i in enumerate((7, 0, 3, 0))
    ]
    assert data.storage.reads == [[7, 0, 3, 0]]
    for sample in samples:
        record = ImageDecoder()(data.storage.read(np.array([sample["index"]]))[0])
        rng = KeyedRng().at(5, 0, sample["position"], Stream.AUGMENT)
        expected = Stack(STEPS, build_step=build_step)(record, rng)
        assert np.array_equal(sample["image"], expected["image"])


def test_bad_and_damaged_records_are_bad_samples_among_good_ones():
    samples = fetch(dataset(), [1, 2, 5, 6], [20, 21, 22, 23])
    assert samples[1] == BadSample(2, "images/2.jpg", 21, "no such file", "memory here")
    assert isinstance(samples[2], BadSample)
    assert (samples[2].index, samples[2].position) == (5, 22)
    assert "JPEG" in samples[2].cause and "\n" not in samples[2].cause
    good = fetch(dataset(), [1, 6], [20, 23])
    assert_same([samples[0], samples[3]], good)


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"label": "target"}, {"image", "target"}),
        ({"label": None}, {"image"}),
        ({"*": None, "image": "image"}, {"image"}),
        (None, {"image", "label"}),
    ],
)
def test_fields_are_renamed_picked_and_dropped(keys, fields):
    (sample,) = fetch(dataset(keys=keys), [1], [0])
    assert set(sample) == fields | {"index", "key", "position"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"a": "x", "b": "x"}, "two fields are renamed to 'x'"),
        ({"position": None}, "'position' is reserved"),
        ({"label": "index"}, "'index' is reserved"),
    ],
)
def test_keys_that_cannot_work_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        dataset(keys=keys)


def test_a_missing_field_cannot_be_renamed():
    with pytest.raises(ValueError, match=r"no field 'lable' in 'images/1.jpg'.*image, label"):
        fetch(dataset(keys={"lable": "target"}), [1], [0])
    with pytest.raises(ValueError, match="'image' is there already"):
        fetch(dataset(keys={"label": "image"}), [1], [0])

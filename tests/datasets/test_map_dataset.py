from __future__ import annotations

import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from penstock.core.contracts import Dataset
from penstock.core.rng import KeyedRng, Stream
from penstock.core.sample import BadSample, RecordError
from penstock.core.user_errors import is_explained
from penstock.datasets.map_dataset import MapDataset
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.raw import make_raw_decoder
from tests.building import build_step
from tests.contracts.equality import assert_same, untouched_global_states
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph
from tests.pipeline.loader.fakes import make_loader

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
    stack = build_stack(STEPS, build_step=build_step)
    return MapDataset(storage(), decode=ImageDecoder(), transform=stack, seed=5, **options)


def fetch(data, indices, positions, epoch=0):
    return data.fetch(np.array(indices, np.int64), np.array(positions, np.int64), epoch)


def test_samples_are_decoded_transformed_and_in_order():
    data = dataset()
    assert isinstance(data, Dataset) and len(data) == 8
    samples = fetch(data, [7, 0, 3, 0], [10, 11, 12, 13])
    assert [s["index"] for s in samples] == [7, 0, 3, 0]
    assert [s["position"] for s in samples] == [10, 11, 12, 13]
    assert [s["key"] for s in samples] == [f"images/{i}.jpg" for i in (7, 0, 3, 0)]
    assert [s["label"] for s in samples] == [1, 0, 0, 0]
    assert data.storage.reads == [[7, 0, 3, 0]]
    for sample in samples:
        record = ImageDecoder()(data.storage.read(np.array([sample["index"]]))[0])
        rng = KeyedRng().at(5, 0, sample["position"], Stream.AUGMENT)
        expected = build_stack(STEPS, build_step=build_step)(record, rng)
        assert np.array_equal(sample["image"], expected["image"])


def test_draws_follow_position_and_epoch_and_nothing_else():
    data = dataset()
    together = fetch(data, [0, 1, 3, 4, 0], [0, 1, 2, 3, 4])
    with untouched_global_states():
        alone = [fetch(data, [i], [p])[0] for p, i in [(4, 0), (3, 4), (2, 3), (1, 1), (0, 0)]]
    assert_same(alone[::-1], together)
    assert_same(fetch(pickle.loads(pickle.dumps(data)), [0, 1, 3, 4, 0], range(5)), together)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: fetch(data, [0, 1, 3, 4, 0], range(5)), range(8)):
            assert_same(result, together)
    assert together[0]["image"].tobytes() != together[4]["image"].tobytes()
    other_epoch = fetch(data, [0, 1, 3, 4, 0], range(5), epoch=1)
    assert all(
        a["image"].tobytes() != b["image"].tobytes()
        for a, b in zip(together, other_epoch, strict=True)
    )


def test_bad_records_and_damage_are_bad_samples_among_good_ones():
    samples = fetch(dataset(), [1, 2, 5, 6], [20, 21, 22, 23])
    assert samples[1] == BadSample(2, "images/2.jpg", 21, "no such file", "memory here")
    assert isinstance(samples[2], BadSample)
    assert (samples[2].index, samples[2].position) == (5, 22)
    assert "JPEG" in samples[2].cause and "\n" not in samples[2].cause
    assert str(samples[1]) == "memory here: 'images/2.jpg' at position 21: no such file"
    good = fetch(dataset(), [1, 6], [20, 23])
    assert_same([samples[0], samples[3]], good)


def test_a_failing_transform_is_a_mistake_and_no_bad_sample():
    steps = {"too_large": {"_target_": "albumentations.CenterCrop", "height": 99, "width": 99}}
    data = MapDataset(
        storage(),
        decode=ImageDecoder(),
        transform=build_stack(steps, build_step=build_step),
        seed=0,
    )
    with pytest.raises(
        RuntimeError, match=r"memory here: 'images/1.jpg' at position 4: in augmentation step "
        r"'too_large' \(albumentations.CenterCrop\)"
    ) as raised:  # fmt: skip
        fetch(data, [1], [4])
    assert raised.value.__cause__ is not None

    def plain(sample, rng):
        raise ZeroDivisionError("by zero")

    data = MapDataset(storage(), decode=ImageDecoder(), transform=plain, seed=0)
    with pytest.raises(RuntimeError, match="in the transform: ZeroDivisionError: by zero"):
        fetch(data, [1], [4])


def test_a_transform_that_says_what_is_wrong_needs_no_traceback():
    steps = {"resize": {"_target_": "transform/resize", "size": 9}}
    transform = build_stack(steps, build_step=build_step)
    data = MapDataset(storage(), decode=make_raw_decoder(), transform=transform, seed=0)
    with pytest.raises(
        ValueError, match=r"'images/1.jpg' at position 4: .*dataset/decode=image$"
    ) as told:
        fetch(data, [1], [4])
    assert is_explained(told.value)


class Decoder:
    """A user's decoder that fails at record 4."""

    def __init__(self, error):
        self.error = error

    def __call__(self, record):
        if record.index == 4:
            raise self.error("the shapes differ")
        sample = {"image": np.zeros((2, 2, 3), np.uint8), "label": 0}
        return {**sample, "index": record.index, "key": record.key}


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_only_a_record_error_counts_as_damage(engine):
    def loader(error):
        data = MapDataset(
            MemoryStorage([{}] * 8), decode=Decoder(error), transform=identity, seed=0
        )
        return make_loader(
            data, SequentialSampler(8), batch_size=4, engine=engine, on_error="skip",
            num_workers=int(engine != "inline"),
            max_error_rate=1.0,
        )  # fmt: skip

    with loader(RecordError) as damaged:
        rows = [index for batch in damaged for index in batch["index"][batch["valid"]].tolist()]
        assert rows == [0, 1, 2, 3, 5, 6, 7] and damaged.stats.bad_samples == 1
    for error in (ValueError, TypeError):
        with loader(error) as mistaken, pytest.raises(Exception, match="differ") as raised:
            list(mistaken)
        assert "'images/4.jpg'" in str(raised.value) and error.__name__ in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"label": "target"}, {"image", "target"}),
        ({"label": None}, {"image"}),
        ({"no such": None}, {"image", "label"}),
        ({"*": None, "image": "image"}, {"image"}),
        (None, {"image", "label"}),
    ],
)
def test_fields_are_renamed_picked_and_dropped(keys, fields):
    (sample,) = fetch(dataset(keys=keys), [1], [0])
    assert set(sample) == fields | {"index", "key", "position"}


def test_a_field_is_renamed_before_it_is_decoded():
    records = MemoryStorage([{"jpg": jpeg(0), "thumbnail": b"x", "cls": 1}])
    data = MapDataset(
        records,
        decode=ImageDecoder(),
        transform=identity,
        seed=0,
        keys={"jpg": "image", "cls": "label", "thumbnail": None},
    )
    (sample,) = fetch(data, [0], [0])
    assert sample["image"].shape == (20, 30, 3) and sample["label"] == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"a": "x", "b": "x"}, "two fields are renamed to 'x'"),
        ({"position": None}, "'position' is reserved"),
        ({"label": "index"}, "'index' is reserved"),
        ({"*": "rest"}, "can only be null, got 'rest'"),
    ],
)
def test_keys_that_cannot_work_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        dataset(keys=keys)


def test_a_field_that_is_not_there_cannot_be_renamed():
    with pytest.raises(ValueError, match=r"no field 'lable' in 'images/1.jpg'.*image, label"):
        fetch(dataset(keys={"lable": "target"}), [1], [0])
    with pytest.raises(ValueError, match="'label' is renamed to 'image', which is there already"):
        fetch(dataset(keys={"label": "image"}), [1], [0])


@pytest.mark.parametrize("first", ["crop", "flip"])
def test_decoding_only_the_crop_changes_no_sample(first):
    steps = {first: STEPS[first], **STEPS}
    stack = build_stack(steps, build_step=build_step)
    fields: list = [{"image": photograph(100, 120 + i), "label": i} for i in range(6)]
    fields[1]["boxes"] = np.array([[5, 5, 60, 70]], np.float32)
    fields[2]["image"] = photograph(90, 130, progressive=True)
    fields[3]["image"] = photograph(90, 128, interval=4)[:3000]
    fields[4]["image"] = b"no image"
    exact, whole = (
        MapDataset(
            MemoryStorage(fields), decode=ImageDecoder(region=region), transform=stack, seed=2
        )
        for region in ("exact", "whole")
    )
    samples = fetch(exact, list(range(6)) * 3, range(18))
    assert_same(samples, fetch(whole, list(range(6)) * 3, range(18)))
    assert isinstance(samples[3], BadSample) and "JPEG" in samples[3].cause
    assert isinstance(samples[4], BadSample)
    again = pickle.loads(pickle.dumps(exact))
    assert_same(fetch(again, list(range(6)) * 3, range(18)), samples)

"""A mix of datasets: the samples of each, and classes united by name."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.core.contracts import Dataset, StreamDataset, Transform
from penstock.core.sample import BadSample, Record
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset
from penstock.datasets.records.table import Table
from penstock.pipeline.samplers.mix import MixedSource, MixSampler, Mixture
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.equality import assert_same
from tests.memory_storage import MemoryStorage

ANIMALS, MORE = ("ant", "bee", "cat"), ("dog", "cat", "ant")


class Stored(MemoryStorage):
    """Small images in memory, with classes and a column of their own."""

    def __init__(self, fields, classes, field_classes=None, name="memory"):
        super().__init__(fields)
        labels = [0 if isinstance(f, str) else f.get("label", 0) for f in fields]
        keys = [f"{name}/{i}" for i in range(len(fields))]
        self._index = Table(keys, {"label": labels, name: labels}, classes)
        if field_classes:
            self._index.metadata["field_classes"] = field_classes

    @property
    def index(self):
        return self._index


def image(value: int) -> np.ndarray:
    return np.full((6, 5, 3), value, np.uint8)


def as_it_is(record: Record):
    return {**record.fields, "index": record.index, "key": record.key}


def shifted(sample, rng):
    return {**sample, "image": sample["image"] + np.uint8(rng.integers(0, 100))}


def dataset(classes, values, *, bad=(), transform=shifted, name="memory", **more) -> MapDataset:
    fields: list = [{"image": image(v), "label": v % 3, **more} for v in values]
    for number in bad:
        fields[number] = "broken"
    known = {name: ANIMALS for name in more if name in ("box_labels", "mask")}
    storage = Stored(fields, classes, known, name)
    return MapDataset(storage, decode=as_it_is, transform=transform, seed=5)


class Plain(Dataset):
    """A dataset with nothing but `fetch`."""

    def __init__(self, inner):
        self.inner = inner
        self.index = inner.index

    def __len__(self):
        return len(self.inner)

    def fetch(self, indices, positions, epoch):
        return self.inner.fetch(indices, positions, epoch)

    def fingerprint(self):
        return self.inner.fingerprint()


def mixed(**sources) -> MixDataset:
    return MixDataset(sources or {"a": dataset(ANIMALS, range(7)), "b": dataset(MORE, range(4))})


def fetch(data, indices, positions, epoch=0):
    return data.fetch(np.array(indices, np.int64), np.array(positions, np.int64), epoch)


def test_samples_name_their_dataset():
    data = mixed()
    assert isinstance(data, Dataset) and len(data) == 11
    samples = fetch(data, [7, 0, 10, 6], [3, 4, 5, 6], 2)
    assert [s["source"] for s in samples] == [1, 0, 1, 0]
    assert [s["index"] for s in samples] == [7, 0, 10, 6]
    assert [s["position"] for s in samples] == [3, 4, 5, 6]
    alone = fetch(data.sources["b"], [0, 3], [3, 5], 2)
    for own, sample in zip(alone, samples[::2], strict=True):
        assert_same(own["image"], sample["image"])
        assert MORE[own["label"]] == data.index.class_names[sample["label"]]
    assert data.index.keys(np.array([10, 0])) == ["memory/3", "memory/0"]
    [bad] = fetch(mixed(a=data.sources["a"], b=dataset(MORE, range(4), bad=[1])), [8], [3])
    assert isinstance(bad, BadSample) and (bad.index, bad.position) == (8, 3)


def test_classes_are_united_by_name():
    index = mixed().index
    assert index.class_names == ("ant", "bee", "cat", "dog")
    assert index.field_classes == {"source": ("a", "b")}
    names = [ANIMALS[v % 3] for v in range(7)] + [MORE[v % 3] for v in range(4)]
    assert [index.class_names[label] for label in index.column("label")] == names
    assert index.column("source").tolist() == [0] * 7 + [1] * 4
    assert index.columns == ("label", "memory", "source")
    with pytest.raises(KeyError, match="no column 'size'; columns: label, memory, source"):
        index.column("size")
    again = pickle.loads(pickle.dumps(index))
    assert again.column("label").tolist() == index.column("label").tolist()


def test_classes_of_annotations_are_united_and_ignored_ids_stay():
    boxes = np.array([2, 0, 1], np.int64)
    mask = np.array([[0, 1, 2, 255]], np.uint8)
    first = dataset(None, [0], box_labels=boxes, mask=mask)
    second = dataset(None, [0], box_labels=boxes, mask=mask)
    second.storage.index.metadata["field_classes"] = {"box_labels": MORE, "mask": MORE}
    data = mixed(a=first, b=second)
    assert data.index.field_classes["mask"] == ("ant", "bee", "cat", "dog")
    one, two = fetch(data, [0, 1], [0, 1])
    assert one["box_labels"].tolist() == [2, 0, 1]
    assert two["box_labels"].tolist() == [0, 3, 2] and two["box_labels"].dtype == np.int64
    assert two["mask"].tolist() == [[3, 2, 0, 255]] and two["mask"].dtype == np.uint8
    assert one["label"] == two["label"] == 0, "ids without any names stay"


def sampler_of(data, weights) -> MixSampler:
    sources = tuple(
        MixedSource(name, len(source), weight, RandomSampler(len(source), seed=7 + number))
        for number, ((name, source), weight) in enumerate(
            zip(data.sources.items(), weights, strict=True)
        )
    )
    return MixSampler(len(data), 1, mixed=Mixture(sources, None))


class Mosaic(Transform):
    """Adds the mean of its partners' images, and notes whose they are."""

    def partner_counts(self, rng):
        return [2]

    def __call__(self, sample, rng, partners):
        values = [int(partner["image"][0, 0, 0]) for partner in partners[0]]
        return {**sample, "partners": values}


def test_partners_come_from_the_same_source():
    first = dataset(ANIMALS, range(40), transform=Mosaic())
    second = dataset(ANIMALS, range(100, 130), transform=Mosaic())
    data = mixed(a=first, b=second)
    assert data.draws_partners
    for sampler in (sampler_of(data, (1, 2)), RandomSampler(70)):
        bound = data.drawing_from(sampler)
        assert_same(fetch(bound, range(70), range(70)), fetch(bound, range(70), range(70)))
        for sample in fetch(bound, range(70), range(70)):
            assert all((value >= 100) == (sample["source"] == 1) for value in sample["partners"])


def test_datasets_that_a_mix_cannot_hold_are_refused():
    class Stream(StreamDataset):
        def open(self, epoch, start):
            return iter(())

        def fetch_items(self, items, positions, epoch, *, rows=None, times=None):
            return []

        def fingerprint(self):
            return ""

    own = dataset(ANIMALS, range(3))
    table = Plain(own)
    table.table = object()
    for source, message in (
        (Stream(), r"dataset\.sources\.b\.dataset is a stream, expected records by index"),
        (table, "decodes a table by statistics of its own"),
    ):
        with pytest.raises(ValueError, match=message):
            mixed(a=own, b=source)
    with pytest.raises(ValueError, match="'label' of 'b' has class ids without names"):
        fetch(mixed(a=own, b=dataset(None, range(3))), [4], [0])
    with pytest.raises(ValueError, match="no source is given"):
        MixDataset({})

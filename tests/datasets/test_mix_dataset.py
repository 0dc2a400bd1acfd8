"""A mix of datasets: the samples of each, told apart, with classes united by name."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from penstock.core.contracts import Dataset, StreamDataset, TransformCapabilities
from penstock.core.sample import BadSample, Record, RecordError
from penstock.core.stage_times import StageTimes
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset, united
from penstock.datasets.records.table import Table
from penstock.pipeline.loader.faults import Replacer
from penstock.pipeline.loader.loader import Loader
from penstock.pipeline.loader.settings import LoaderSettings
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
    """A dataset of somebody else's: nothing but `fetch`."""

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


def test_samples_are_those_of_their_dataset_told_apart():
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


def test_classes_are_united_by_name():
    index = mixed().index
    assert index.class_names == ("ant", "bee", "cat", "dog")
    assert index.field_classes == {"source": ("a", "b")}
    names = [ANIMALS[v % 3] for v in range(7)] + [MORE[v % 3] for v in range(4)]
    assert [index.class_names[label] for label in index.column("label")] == names
    assert index.column("source").tolist() == [0] * 7 + [1] * 4
    assert index.columns == ("label", "memory", "source")
    with pytest.raises(KeyError, match="no column 'size'; of all sources: label, memory, source"):
        index.column("size")
    again = pickle.loads(pickle.dumps(index))
    assert again.column("label").tolist() == index.column("label").tolist()


def test_annotated_fields_are_united_too_and_ids_to_ignore_stay():
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


def test_ids_that_do_not_fit_are_not_cut():
    ids = np.arange(300)[::-1].copy()
    assert united(np.array([0, 7], np.uint8), ids).tolist() == [299, 292]


def test_classes_without_names_beside_named_ones_are_refused():
    data = mixed(a=dataset(ANIMALS, range(3)), b=dataset(None, range(3)))
    with pytest.raises(ValueError, match="'label' of 'b' has class ids without names") as caught:
        fetch(data, [4], [0])
    assert "\n" not in str(caught.value)


def test_a_field_of_that_name_is_refused():
    data = mixed(a=dataset(ANIMALS, range(3), source="web"))
    with pytest.raises(ValueError, match="samples of 'a' have a field 'source'"):
        fetch(data, [1], [0])


def test_foreign_datasets_are_mixed_too():
    data = mixed(a=dataset(ANIMALS, range(5)), b=Plain(dataset(ANIMALS, range(9, 14))))
    staged = mixed(a=dataset(ANIMALS, range(5)), b=dataset(ANIMALS, range(9, 14)))
    indices, positions = [9, 0, 5, 1, 8], [1, 2, 3, 4, 5]
    for own, other in zip(*(fetch(d, indices, positions) for d in (data, staged)), strict=True):
        assert_same(own, other)


def test_images_are_written_to_the_rows_of_their_batch():
    data = mixed()
    assert data.row_shape is None
    fetch(data, [0, 10], [0, 1])
    assert data.row_shape == (6, 5, 3)
    rows = np.zeros((4, 6, 5, 3), np.uint8)
    indices, positions = np.array([0, 8, 9, 1]), np.arange(4)
    times = StageTimes()
    samples = data.finish(data.read(indices, positions, 0), positions, 0, rows=rows, times=times)
    for row, sample in zip(rows, samples, strict=True):
        assert np.shares_memory(row, sample["image"])
    assert times.transform > 0


def test_bad_samples_say_which_they_are_and_are_replaced_from_their_source():
    data = mixed(a=dataset(ANIMALS, range(40)), b=dataset(MORE, range(20), bad=(1, 3), name="two"))
    bad = fetch(data, [43], [4])[0]
    assert isinstance(bad, BadSample) and bad.index == 43 and bad.position == 4
    sampler = sampler_of(data, (30, 1), 600)
    positions = np.flatnonzero(sampler.indices(0, 0, 600) == 43)
    assert positions.size
    for position in positions.tolist():
        found = fetch(data, [43], [position])[0]
        sample, index = Replacer(data, sampler, 0, same=sampler.same).replace(found, 0)
        assert sample["source"] == 1 and index == sample["index"] >= 40


def test_a_bad_sample_advises_the_keys_of_its_source():
    def unreadable(record):
        raise RecordError("no field 'image'; type dataset.keys={pixels: image}")

    source = dataset(ANIMALS, range(3))
    storage = source.storage
    data = mixed(a=source, b=MapDataset(storage, decode=unreadable, transform=shifted, seed=5))
    advice = "type dataset.sources.b.dataset.keys={pixels: image}"
    assert fetch(data, [4], [0])[0].cause.endswith(advice)


def sampler_of(data, weights, length=None) -> MixSampler:
    sources = tuple(
        MixedSource(name, len(source), weight, RandomSampler(len(source), seed=7 + number))
        for number, ((name, source), weight) in enumerate(
            zip(data.sources.items(), weights, strict=True)
        )
    )
    return MixSampler(len(data), 1, mixed=Mixture(sources, length))


def test_batches_tell_the_source():
    data = mixed()
    loader = Loader(
        data,
        sampler=sampler_of(data, (3, 1), 16),
        collate=torch_stack,
        settings=LoaderSettings(engine="inline", batch_size=8, num_workers=0),
        seed=1,
    )
    batches = list(loader)
    assert torch.cat([batch["source"] for batch in batches]).bincount().tolist() == [12, 4]
    assert batches[0]["source"].dtype == torch.int64
    assert loader.classes_of("source") == ("a", "b")


def torch_stack(samples):
    from penstock.pipeline.collates.stack import stack

    return stack(samples)


class Mosaic:
    """Adds the mean of its partners' images, and notes whose they are."""

    @property
    def capabilities(self):
        return TransformCapabilities(partner_counts=self.partner_counts)

    def partner_counts(self, rng):
        return [2]

    def __call__(self, sample, rng, partners):
        values = [int(partner["image"][0, 0, 0]) for partner in partners[0]]
        return {**sample, "partners": values}


def test_partners_are_of_the_same_source():
    first = dataset(ANIMALS, range(40), transform=Mosaic())
    second = dataset(ANIMALS, range(100, 130), transform=Mosaic())
    data = mixed(a=first, b=second)
    assert data.draws_partners
    for sampler in (sampler_of(data, (1, 2)), RandomSampler(70)):
        bound = data.drawing_from(sampler)
        assert_same(fetch(bound, range(70), range(70)), fetch(bound, range(70), range(70)))
        for sample in fetch(bound, range(70), range(70)):
            assert all((value >= 100) == (sample["source"] == 1) for value in sample["partners"])


def test_the_fingerprint_is_of_names_data_and_order():
    def prints(**sources):
        return mixed(**sources).fingerprint()

    a, b = dataset(ANIMALS, range(3)), dataset(ANIMALS, range(5))
    assert prints(a=a, b=b) == prints(a=a, b=b)
    assert len({prints(a=a, b=b), prints(b=b, a=a), prints(a=b, b=a), prints(a=a, c=b)}) == 4


def test_what_has_no_place_in_a_mix_is_refused():
    class Stream(StreamDataset):
        def open(self, epoch, start):
            return iter(())

        def fetch_items(self, items, positions, epoch, *, rows=None, times=None):
            return []

        def fingerprint(self):
            return ""

    own = dataset(ANIMALS, range(3))
    collating, table = Plain(own), Plain(own)
    collating.collate = list
    table.table = object()
    for source, message in (
        (Stream(), "'b' is a stream, .* a mix draws by index; give dataset.sources.b.dataset"),
        (collating, "collate_fn of its own"),
        (table, "decodes a table by figures of its own"),
    ):
        with pytest.raises(ValueError, match=message):
            mixed(a=own, b=source)
    with pytest.raises(ValueError, match="no source is given"):
        MixDataset({})

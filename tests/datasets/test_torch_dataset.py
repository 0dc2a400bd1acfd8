"""Any torch Dataset as it is: map-style, iterable, with its own collate and initialisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.core.sample import BadSample
from penstock.datasets.torch_dataset import open_torch
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.equality import untouched_global_states
from tests.pipeline.loader.fakes import digests, make_loader
from tests.shares import in_turn


class Images(Dataset):
    """Images by number; some items are None or cannot be read."""

    def __init__(self, n=60, bad=()):
        self.n, self.bad = n, bad
        self.targets = [number % 2 for number in range(n)]
        self.classes = ["even", "odd"]

    def __len__(self):
        return self.n

    def __getitem__(self, number):
        if number in self.bad:
            return None
        if number == 1000:
            raise OSError("cannot identify image file\nsecond line")
        return np.full((4, 4, 3), number, np.uint8), number % 2


class Items(IterableDataset):
    def __init__(self, n=30):
        self.n = n

    def __iter__(self):
        for number in range(self.n):
            yield {"image": np.full((2, 2, 3), number, np.uint8) + np.random.randint(3),
                   "label": torch.tensor(number)}  # fmt: skip


def _all(**changes):
    return open_torch(**{"target": Images, "val_fraction": 0.0, **changes})


def test_labels_and_classes_come_from_the_attributes():
    index = _all().index
    assert index.class_names == ("even", "odd") and index.column("label").tolist() == [0, 1] * 30


def test_none_and_unreadable_items_are_bad_samples():
    dataset = _all(args={"n": 1001, "bad": [3]})
    none, unreadable = dataset.fetch(np.array([3, 1000]), np.array([0, 1]), 0)
    assert isinstance(none, BadSample) and "None" in none.cause and none.key == "3"
    assert unreadable.cause == "OSError: cannot identify image file"
    assert "Images" in unreadable.storage
    loader = make_loader(_all(args={"bad": [3, 9]}), RandomSampler(60))
    digests(loader)
    assert loader.stats.bad_samples == 2


def test_the_validation_part_does_not_depend_on_the_length():
    parts = [_all(split=split, val_fraction=0.3, args={"n": 1000}) for split in ("train", "val")]
    assert sum(len(part) for part in parts) == 1000 and 250 < len(parts[1]) < 350
    longer = _all(split="val", val_fraction=0.3, args={"n": 2000})
    assert longer._numbers[: len(parts[1])].tolist() == parts[1]._numbers.tolist()
    val = parts[1]
    (sample,) = val.fetch(np.array([7]), np.array([0]), 0)
    assert sample["label"] == val.index.column("label")[7]


def test_evaluation_may_have_arguments_of_its_own():
    common = {"args": {"n": 40}, "val_args": {"n": 10}, "val_fraction": 0.5}
    assert len(_all(**common)) == 40
    assert len(_all(**common, split="val")) == 10
    with pytest.raises(ValueError, match=r"test split.* dataset\.test_args="):
        _all(**common, split="test")
    assert len(_all(**common, test_args={"n": 7}, split="test")) == 7
    assert len(_all(args={"n": 40}, test_args={"n": 7}, split="test")) == 7


class Parts(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        grey = Image.new("L", (3, 2), 7)
        if number == 0:
            return grey, torch.tensor(3), np.int64(4)
        if number == 1:
            return torch.zeros(3, 5, 4)
        if number == 2:
            return {"image": Image.new("P", (3, 2)), "mask": grey, "text": "a"}
        return (1, 2, 3, 4)


def test_parts_become_fields():
    dataset = _all(target=Parts, keys=["image", "label", "extra"])
    fetched = dataset.fetch(np.arange(3), np.arange(3), 0)
    assert fetched[0]["image"].shape == (2, 3, 3) and fetched[0]["image"].dtype == np.uint8
    assert (fetched[0]["label"], fetched[0]["extra"]) == (3, 4)
    assert type(fetched[0]["label"]) is int
    assert fetched[1]["image"].shape == (3, 5, 4) and "label" not in fetched[1]
    assert fetched[2]["mask"].shape == (2, 3) and fetched[2]["text"] == "a"
    assert fetched[2]["image"].shape == (2, 3, 3)
    assert [sample["position"] for sample in fetched] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"4 parts and dataset\.keys names 3"):
        dataset.fetch(np.array([3]), np.array([3]), 0)


class Sharded(IterableDataset):
    """Every worker yields its share, as in the documentation of torch, with noise."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 61, step):
            image = np.random.randint(0, 256, (3, 2, 3), dtype=np.uint8)
            yield image, torch.tensor(number)


def _labels(batches):
    return [label for batch in batches for label in batch["label"][batch["valid"]].tolist()]


WAYS = [
    {"engine": "threads", "num_workers": 1},
    {"engine": "processes", "num_workers": 2},
    {"engine": "torch", "num_workers": 3},
    {"engine": None, "num_workers": 2},
]


@pytest.mark.parametrize(("readers", "way"), in_turn([1, 3], WAYS))
def test_any_number_of_processes_read_the_parts_of_an_iterable(readers, way):
    stream = _all(target=Sharded, readers=readers, transform=_noise)
    with untouched_global_states():
        with make_loader(stream) as inline:
            expected = digests(inline, epochs=2)
            state = inline.state_dict()
            batches = list(inline)
        with make_loader(stream, **way) as loader:
            assert digests(loader, epochs=2) == expected
            loader.load_state_dict({**state, "epoch": 1, "finished": False, "next_batch": 5})
            assert digests(loader) == expected[len(expected) // 2 + 5 :]
    assert sorted(_labels(batches)) == list(range(61))
    if readers == 3:
        assert batches[0]["label"].tolist() == [0, 3, 1, 4, 7, 2, 5, 8]


def _noise(sample, rng):
    return sample | {"image": sample["image"] ^ np.uint8(rng.integers(1 << 7))}


def test_an_iterable_that_yields_everything_in_every_part_is_refused():
    with pytest.raises(ValueError, match=r"is a map-style Dataset; type dataset\.readers=1"):
        _all(target=Images, readers=2)
    for options in ({}, {"engine": "threads", "num_workers": 1}):
        with make_loader(_all(target=Items, readers=2), **options) as loader:
            with pytest.raises(ValueError, match=r"did not ask .*get_worker_info.*readers=1"):
                next(iter(loader))


class Truncated(IterableDataset):
    """Ends in the middle with an error that a connection could raise as well."""

    def __iter__(self):
        yield from Items(12)
        raise EOFError("the file is truncated")


def test_a_reader_process_passes_on_the_error_of_the_iterable():
    with make_loader(_all(target=Truncated), engine="processes", num_workers=2) as loader:
        batches = iter(loader)
        assert next(batches)["label"].tolist() == [*range(8)]
        with pytest.raises(EOFError, match="the file is truncated"):
            next(batches)


class Keyed(IterableDataset):
    """Numbers, each with a key of its own."""

    def __iter__(self):
        yield from ((number, f"item {number}") for number in range(30))


def test_an_iterable_with_keys_is_split():
    given = {"target": Keyed, "keys": ["label", "key"], "val_fraction": 0.3}
    parts = [_all(**given, split=split) for split in ("train", "val")]
    labels = [[item[0] for item in part.open(epoch=0, start=0)] for part in parts]
    assert sorted(labels[0] + labels[1]) == list(range(30)) and labels[1]
    assert [item[0] for item in parts[0].open(0, 3)] == labels[0][3:]
    assert parts[0].fingerprint() != parts[1].fingerprint()

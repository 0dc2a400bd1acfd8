"""Any torch Dataset as it is: map-style, iterable, with its own collate and initialisation."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from penstock.core.contracts import Dataset as DatasetProtocol
from penstock.core.contracts import StreamDataset
from penstock.core.sample import BadSample
from penstock.datasets.torch_dataset import open_torch
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.equality import untouched_global_states
from tests.pipeline.loader.fakes import digests, make_loader

FORK = {"engine": "torch", "num_workers": 2}


class Noisy(Dataset):
    """As users write them: augmentation from all three global random states."""

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
        image = np.random.randint(0, 256, (4, 4, 3), dtype=np.uint8)
        image[0, 0, 0] = random.randrange(256)
        image[0, 0, 1] = int(torch.randint(256, ()))
        image[0, 1] = number
        return image, number % 2


class Together(Dataset):
    """Knows how to read several items at once, as those of databases and of Hugging Face do."""

    def __init__(self, noisy=False, bad=(), log="/dev/null"):
        self.noisy, self.bad, self.log = noisy, bad, log

    def __len__(self):
        return 60

    def __getitems__(self, numbers):
        with open(self.log, "a") as log:
            log.write(f"{len(numbers)}\n")
        if set(self.bad) & set(numbers):
            raise OSError("one of them cannot be read")
        return [self[number] for number in numbers]

    def __getitem__(self, number):
        if number in self.bad:
            raise OSError("it cannot be read")
        image = np.full((4, 4, 3), number, np.uint8)
        if self.noisy and number % 3 == 0:
            image[0, 0] = random.randrange(256), np.random.randint(256), int(torch.randint(256, ()))
        return image, number % 2


class Items(IterableDataset):
    def __init__(self, n=30):
        self.n = n

    def __iter__(self):
        for number in range(self.n):
            yield {"image": np.full((2, 2, 3), number, np.uint8) + np.random.randint(3),
                   "label": torch.tensor(number)}  # fmt: skip


def _all(**changes):
    return open_torch(**{"target": Noisy, "val_fraction": 0.0, **changes})


def test_it_is_a_dataset():
    dataset = _all()
    assert isinstance(dataset, DatasetProtocol) and not isinstance(dataset, StreamDataset)
    assert dataset.index.class_names == ("even", "odd")
    assert dataset.index.column("label").tolist() == [0, 1] * 30
    with pytest.raises(KeyError, match="label"):
        dataset.index.column("size")


def test_items_are_read_together_where_a_dataset_can(tmp_path):
    log = tmp_path / "log"
    dataset = _all(target=Together, args={"log": str(log)})
    (batch, *others) = make_loader(dataset, batch_size=7)
    assert batch["image"][:, 0, 0, 0].tolist() == list(range(7)) and len(others) == 8
    assert log.read_text().split() == ["7"] * 8 + ["4"]


def test_items_that_draw_are_functions_of_the_position_when_read_together(tmp_path):
    log = tmp_path / "log"
    dataset = _all(target=Together, args={"noisy": True, "log": str(log)})
    with untouched_global_states():
        expected = digests(make_loader(dataset, RandomSampler(60)), epochs=2)
    assert log.read_text().split() == ["8"], "tried once, then one by one"
    rows = []
    for batch_size in (1, 7, 60):
        loader = make_loader(dataset, RandomSampler(60), batch_size=batch_size)
        rows.append(np.concatenate([batch["image"].numpy() for batch in loader]).tolist())
    assert rows[0] == rows[1] == rows[2]
    assert digests(make_loader(dataset, RandomSampler(60), **FORK), epochs=2) == expected


def test_none_and_unreadable_items_are_bad_samples():
    dataset = _all(args={"n": 1001, "bad": [3]})
    none, unreadable = dataset.fetch(np.array([3, 1000]), np.array([0, 1]), 0)
    assert isinstance(none, BadSample) and "None" in none.cause and none.key == "3"
    assert unreadable.cause == "OSError: cannot identify image file"
    assert "Noisy" in unreadable.storage
    loader = make_loader(_all(args={"bad": [3, 9]}), RandomSampler(60))
    digests(loader)
    assert loader.stats.bad_samples == 2


def test_a_part_is_for_evaluation_whatever_the_length():
    parts = [_all(split=split, val_fraction=0.3, args={"n": 1000}) for split in ("train", "val")]
    assert sum(len(part) for part in parts) == 1000 and 250 < len(parts[1]) < 350
    longer = _all(split="val", val_fraction=0.3, args={"n": 2000})
    assert longer._items[: len(parts[1])].tolist() == parts[1]._items.tolist()
    items = set(parts[0]._items.tolist()) | set(parts[1]._items.tolist())
    assert len(items) == 1000
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


def _user_collate(items):
    images, labels = default_collate(items)
    return images.float() / 255, labels


@pytest.mark.parametrize("options", [{}, FORK])
def test_a_users_collate_fn(options):
    dataset = _all(collate_fn=_user_collate)
    with make_loader(dataset, RandomSampler(60), **options) as loader:
        batch = next(iter(loader))
    assert batch["image"].dtype == torch.float32 and batch["image"].shape == (8, 4, 4, 3)
    assert batch["index"].tolist() == RandomSampler(60).indices(0, 0, 8).tolist()
    assert batch["position"].tolist() == list(range(8)) and batch["valid"].all()
    assert batch["key"] == [str(index) for index in batch["index"].tolist()]


def test_a_transform_is_applied():
    def brighten(sample, rng):
        return sample | {"image": sample["image"] | np.uint8(rng.integers(1 << 7))}

    plain, changed = _all(), _all(transform=brighten)
    index, position = np.array([5]), np.array([9])
    before = plain.fetch(index, position, 0)[0]["image"]
    after = changed.fetch(index, position, 0)[0]["image"]
    assert before.tobytes() != after.tobytes() and ((before | 127) == (after | 127)).all()


def _note_worker(path, worker_id):
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {worker_id}\n")


class _Init:
    def __init__(self, path):
        self.path = path

    def __call__(self, worker_id):
        _note_worker(self.path, worker_id)


def test_worker_init_fn_runs_once_in_every_worker(tmp_path):
    path = tmp_path / "log"
    with make_loader(_all(worker_init_fn=_Init(path)), **FORK) as loader:
        digests(loader, epochs=2)
    assert sorted(line.split()[1] for line in path.read_text().splitlines()) == ["0", "1"]
    path.unlink()
    digests(make_loader(_all(worker_init_fn=_Init(path))), epochs=2)
    assert path.read_text() == f"{os.getpid()} 0\n"


@pytest.mark.parametrize("options", [{}, FORK])
def test_iterable(options):
    stream = _all(target=Items)
    assert isinstance(stream, StreamDataset) and not hasattr(stream, "__len__")
    with untouched_global_states():
        expected = digests(make_loader(stream))
        with make_loader(stream, **options) as loader:
            assert digests(loader) == expected
            state = loader.state_dict()
        with make_loader(stream, **options) as loader:
            loader.load_state_dict({**state, "finished": False, "next_batch": 2})
            assert digests(loader) == expected[2:]
    labels = [batch["label"].tolist() for batch in make_loader(stream)]
    assert [label for part in labels for label in part] == list(range(30))


class Sharded(IterableDataset):
    """As torch's documentation has it: every worker gives its share, with noise."""

    def __init__(self, n=61, kills=None, raises=None, stalls=None):
        self.n, self.kills, self.raises, self.stalls = n, kills, raises, stalls

    def __iter__(self):
        told = get_worker_info()
        first, step = (told.id, told.num_workers) if told is not None else (0, 1)
        for number in range(first, self.n, step):
            if self.kills and number == 30 and not os.path.exists(self.kills):
                with open(self.kills, "w"):
                    os.kill(os.getpid(), signal.SIGKILL)
            if number == self.raises:
                raise KeyError("a user's mistake")
            if number == self.stalls:
                time.sleep(600)
            image = np.random.randint(0, 256, (3, 2, 3), dtype=np.uint8)
            yield image, torch.tensor(number)


def _labels(batches):
    return [label for batch in batches for label in batch["label"][batch["valid"]].tolist()]


WAYS = [
    {"engine": "threads", "num_workers": 1},
    {"engine": "processes", "num_workers": 2},
    {"engine": "torch", "num_workers": 3},
    {"engine": None, "num_workers": 2},
    pytest.param({"engine": "threads", "num_workers": 5}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("readers", [1, 3])
def test_parts_of_an_iterable_are_read_by_any_number_of_processes(readers, way):
    stream = _all(target=Sharded, readers=readers, transform=_noise)
    with untouched_global_states():
        with make_loader(stream) as inline:
            expected = digests(inline, epochs=2)
            state = inline.state_dict()
        with make_loader(stream, **way) as loader:
            assert digests(loader, epochs=2) == expected
            loader.load_state_dict({**state, "epoch": 1, "finished": False, "next_batch": 5})
            assert digests(loader) == expected[len(expected) // 2 + 5 :]
    with make_loader(stream, **way) as loader:
        batches = list(loader)
    assert sorted(_labels(batches)) == list(range(61))
    if readers == 3:
        assert batches[0]["label"].tolist() == [0, 3, 1, 4, 7, 2, 5, 8]


def _noise(sample, rng):
    return sample | {"image": sample["image"] ^ np.uint8(rng.integers(1 << 7))}


def test_an_iterable_that_gives_every_part_all_of_it_is_refused():
    for options in ({}, {"engine": "threads", "num_workers": 1}):
        with make_loader(_all(target=Items, readers=2), **options) as loader:
            with pytest.raises(ValueError, match=r"did not ask .*get_worker_info.*readers=1"):
                next(iter(loader))
    with pytest.raises(ValueError, match=r"for an IterableDataset.*leave dataset\.readers away"):
        _all(readers=2)


def _take_a_range(worker_id):
    told = get_worker_info()
    assert told.id == worker_id
    told.dataset.first += worker_id * 10
    told.dataset.stop = told.dataset.first + 10


class Range(IterableDataset):
    first, stop = 0, 30

    def __iter__(self):
        return ({"label": number} for number in range(self.first, self.stop))


def test_a_worker_init_fn_may_divide_an_iterable():
    stream = _all(target=Range, readers=3, worker_init_fn=_take_a_range)
    for options in ({}, {"engine": "threads", "num_workers": 2}):
        with make_loader(stream, collate=Labels(), **options) as loader:
            for _ in range(2):
                assert sorted(_labels(loader)) == list(range(30))


class Labels:
    def __call__(self, samples):
        return {name: torch.tensor([sample[name] for sample in samples])
                for name in ("label", "position")}  # fmt: skip


def test_a_reader_that_is_killed_reads_on_where_it_was(tmp_path, caplog):
    expected = digests(make_loader(_all(target=Sharded, readers=3)))
    args = {"kills": str(tmp_path / "killed")}
    with make_loader(
        _all(target=Sharded, readers=3, args=args), engine="threads", num_workers=2
    ) as loader:
        assert digests(loader) == expected
    assert "worker process" in caplog.text and "SIGKILL" in caplog.text


class Drawn(Sharded):
    """Its noise comes of an object that it holds."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        for image, label in super().__iter__():
            yield image ^ self.rng.integers(0, 256, image.shape, np.uint8), label


def test_parts_share_no_state_of_the_object():
    stream = _all(target=Drawn, readers=3)
    given = []
    for workers in (0, 1, 2):
        way = {"engine": "threads" if workers else "inline", "num_workers": workers}
        with make_loader(stream, **way) as loader:
            given.append(digests(loader, epochs=2))
    assert given[0] == given[1] == given[2]


class Keyed(IterableDataset):
    """Numbers, each with a key of its own."""

    def __iter__(self):
        yield from ((number, f"item {number}") for number in range(30))


def test_an_iterable_with_keys_is_split_too():
    given = {"target": Keyed, "keys": ["label", "key"], "val_fraction": 0.3}
    parts = [_all(**given, split=split) for split in ("train", "val")]
    labels = [[item[0] for item in part.open(epoch=0, start=0)] for part in parts]
    assert sorted(labels[0] + labels[1]) == list(range(30)) and labels[1]
    assert [item[0] for item in parts[0].open(0, 3)] == labels[0][3:]
    assert parts[0].fingerprint() != parts[1].fingerprint()


class Plain(Dataset):
    def __init__(self, image=None):
        self.image = np.zeros((4, 5, 3), np.uint8) if image is None else image

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return self.image, number % 3


class WithTargets(Plain):
    targets = (0, 1, 2, 0, 1, 2)


def test_classes_are_given_named_or_counted():
    assert _all(target=Plain).index.class_names is None
    assert _all(target=Plain, classes=3).index.class_names == ("0", "1", "2")
    assert _all(target=Plain, classes=["a", "b", "c"]).index.class_names == ("a", "b", "c")
    assert _all(target=WithTargets).index.class_names == ("0", "1", "2")
    stream = _all(target=Items, classes=2)
    with make_loader(stream, None) as loader:
        assert loader.class_names == ("0", "1")

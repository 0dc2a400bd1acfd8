"""Epochs, ranks, resume, streams, and nothing global touched."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.samplers.random import RandomSampler
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.equality import untouched_global_states
from tests.pipeline.loader.fakes import (
    Collated,
    FakeDataset,
    FakeStream,
    digest,
    digests,
    make_loader,
)

N = 53
FORK = {"engine": "torch", "num_workers": 2}


def _sampler(name: str, dataset: FakeDataset):
    n = len(dataset)
    return {
        "sequential": lambda: None,
        "random": lambda: RandomSampler(n, seed=4),
        "weighted": lambda: WeightedSampler(n, dataset.index, 4, num_samples=n + 9),
        "without": lambda: WeightedSampler(n, dataset.index, 4, replacement=False),
    }[name]()


def _row_digests(batch) -> list[tuple[int, str]]:
    return [
        (int(batch["position"][row]),
         digest({name: value[row : row + 1] for name, value in batch.items()}))
        for row in range(len(batch["key"]))
        if batch["valid"][row]
    ]  # fmt: skip


@settings(max_examples=40)
@given(
    n=st.integers(1, 90),
    batch_size=st.integers(1, 20),
    world_size=st.sampled_from([2, 3, 4, 8]),
    drop_last=st.sampled_from([True, False, "pad"]),
    name=st.sampled_from(["sequential", "random", "weighted", "without"]),
)
def test_ranks_together_see_the_epoch_once_in_order(n, batch_size, world_size, drop_last, name):
    if drop_last is True and n < batch_size:
        return
    dataset = FakeDataset(n, bad=(2, 30))
    options = {"batch_size": batch_size, "drop_last": drop_last, "max_error_rate": 1.0}
    if n < 5:
        dataset.bad = frozenset()
    alone = list(make_loader(dataset, _sampler(name, dataset), **options))
    ranks = [
        list(
            make_loader(dataset, _sampler(name, dataset), rank=r, world_size=world_size, **options)
        )
        for r in range(world_size)
    ]
    assert {len(rank) for rank in ranks} == {len(alone)}
    for number, whole in enumerate(alone):
        union = [row for rank in ranks for row in _row_digests(rank[number])]
        assert union == _row_digests(whole)


def test_repeats_of_a_weighted_record_are_augmented_differently():
    dataset = FakeDataset(N)
    batches = list(make_loader(dataset, _sampler("weighted", dataset)))
    rows = [
        (int(index), image.numpy().tobytes())
        for batch in batches
        for index, image in zip(batch["index"], batch["image"], strict=True)
    ]
    assert len({index for index, _ in rows}) < len(rows) == len(set(rows))


@pytest.mark.parametrize("name", ["random", "weighted", "without"])
@pytest.mark.parametrize("drop_last", [True, False, "pad"])
def test_resume_after_every_step_on_any_ranks(name, drop_last):
    dataset = FakeDataset(N, bad=(7,))
    options = {"batch_size": 8, "drop_last": drop_last}

    def loader(**more):
        return make_loader(dataset, _sampler(name, dataset), **options, **more)

    first, second = digests(loader()), digests(loader(), epochs=2)[len(digests(loader())) :]
    running = loader(rank=0, world_size=2)
    iterator = iter(running)
    for step in range(len(first) + 1):
        state = json.loads(json.dumps(running.state_dict()))
        assert len(json.dumps(state)) < 1_000
        resumed = loader()
        resumed.load_state_dict(state)
        again = loader()
        again.load_state_dict(resumed.state_dict())
        for fresh in (resumed, again):
            assert digests(fresh) == first[step:]
            assert digests(fresh) == second
        next(iterator, None)


@pytest.mark.parametrize("step", [0, 1, 6, 7])
def test_resume_in_workers(step):
    dataset = FakeDataset(N)
    expected = digests(make_loader(dataset, RandomSampler(N)))
    with make_loader(dataset, RandomSampler(N), **FORK) as loader:
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        state = loader.state_dict()
    assert state["next_batch"] == step, "batches handed over, not those read ahead"
    resumed = make_loader(dataset, RandomSampler(N), **{**FORK, "num_workers": 1})
    with resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[step:]


def test_the_end_of_an_epoch_is_a_state():
    dataset = FakeDataset(N)
    epochs = [digests(_at(dataset, epoch)) for epoch in range(3)]
    loader = make_loader(dataset, RandomSampler(N))
    assert digests(loader) == epochs[0] and loader.epoch == 0
    done = loader.state_dict()
    assert digests(loader) == epochs[1] and loader.epoch == 1
    resumed = make_loader(dataset, RandomSampler(N))
    resumed.load_state_dict(done)
    assert digests(resumed) == epochs[1], "after a finished epoch comes the next"
    resumed.load_state_dict(done)
    resumed.set_epoch(0)
    assert digests(resumed) == [], "nothing is left of epoch 0"
    assert digests(resumed) == epochs[1]
    resumed.load_state_dict(done)
    resumed.set_epoch(2)
    assert digests(resumed) == epochs[2]


def _at(dataset, epoch):
    loader = make_loader(dataset, RandomSampler(N))
    loader.set_epoch(epoch)
    return loader


def test_set_epoch_keeps_a_loaded_place_and_restarts_any_other():
    dataset = FakeDataset(N)
    first = digests(_at(dataset, 1))
    loader = _at(dataset, 1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.set_epoch(1)
    assert digests(loader) == first
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert digests(loader) == first[1:]
    loader.set_epoch(1)
    assert digests(loader) == first


def test_an_epoch_broken_off_starts_again():
    loader = make_loader(FakeDataset(N), RandomSampler(N))
    expected = digests(_at(FakeDataset(N), 0))
    for batch in loader:
        assert digest(batch) == expected[0]
        break
    assert digests(loader) == expected


IDENTITY = {
    "sampler": {"_target_": "sampler/random"},
    "pixels": {"decode": {"mode": "RGB"}, "augment": {"crop": {"scale": (0.5, 1)}}},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"batch_size": 4}, "plan.batch_size was 8 and is 4"),
        ({"drop_last": "pad"}, "plan.tail was keep and is pad"),
        ({"identity": {**IDENTITY, "sampler": {"_target_": "sampler/x"}}},
         "plan.sampler._target_ was sampler/random and is sampler/x"),
        ({"identity": {**IDENTITY, "pixels": {"decode": {"mode": "L"}}}},
         "pixels.augment.* is nothing; pixels.decode.mode was RGB and is L"),
        ({"n": N + 1}, "plan.num_positions was 53 and is 54"),
        ({"version": 0}, "version 0, expected 2"),
    ],
)  # fmt: skip
def test_a_state_of_something_else_is_refused(changes, message):
    saved = make_loader(FakeDataset(N), RandomSampler(N), identity=IDENTITY).state_dict()
    changes = dict(changes)
    n = changes.pop("n", N)
    saved["version"] = changes.pop("version", 2)
    loader = make_loader(FakeDataset(n), RandomSampler(n), **{"identity": IDENTITY, **changes})
    with pytest.raises(ValueError, match=message) as caught:
        loader.load_state_dict(saved)
    assert "\n" not in str(caught.value)
    loader.load_state_dict(saved, anyway=True)


STATES = [None, "x", {}, {"epoch": "a"}, {"epoch": -1}, {"next_batch": 0.5}, {"quarantined": ["a"]}]


@pytest.mark.parametrize("given", STATES)
def test_what_is_no_state_is_refused(given):
    loader = make_loader(FakeDataset(N))
    state = {**loader.state_dict(), **given} if isinstance(given, dict) and given else given
    for anyway in (False, True):
        with pytest.raises(ValueError, match=r"^loader state: .* given, expected what state_dict"):
            loader.load_state_dict(state, anyway=anyway)
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("epoch", ["a", None, 1.5, -1, 1 << 70])
def test_what_is_no_epoch_is_refused(epoch):
    for split in ("train", "val"):
        with pytest.raises(ValueError, match=r"epoch .* given, expected a whole number from 0 on"):
            make_loader(FakeDataset(N), split=split).set_epoch(epoch)


def test_other_weights_are_refused():
    dataset = FakeDataset(N)
    a = make_loader(dataset, WeightedSampler(N, dataset.index, weights="balanced"))
    b = make_loader(dataset, WeightedSampler(N, dataset.index, weights="size"))
    with pytest.raises(ValueError, match=r"plan\.weights was"):
        b.load_state_dict(a.state_dict())


@pytest.mark.parametrize("options", [{}, FORK, {**FORK, "num_workers": 0}])
def test_global_random_states_stay_as_they_are(options):
    with (
        make_loader(FakeDataset(N), RandomSampler(N), **options) as loader,
        untouched_global_states(),
    ):
        digests(loader, epochs=2)


def test_valid_and_keys_are_there():
    batch = next(iter(make_loader(FakeDataset(N))))
    assert batch["valid"].dtype == torch.bool and batch["key"][0] == "img/0000000.jpg"
    assert batch["image"].dtype == torch.uint8 and len(make_loader(FakeDataset(N))) == 7


def test_zero_batches_say_what_to_do():
    with pytest.raises(ValueError, match=r"0 batches: 5 samples.*loader.batch_size"):
        make_loader(FakeDataset(5), drop_last=True)
    assert digests(make_loader(FakeDataset(0), split="val")) == []


def test_an_epoch_of_a_billion_starts_at_once(monkeypatch):
    class Endless(FakeDataset):
        def __len__(self):
            return 10**9

        def _one(self, index, position, epoch):
            return super()._one(index % 9, position, epoch) | {"index": index}

    loader = make_loader(Endless(9), RandomSampler(10**9))
    state = loader.state_dict() | {"next_batch": 10**9 // 8 - 1}
    loader.load_state_dict(state)
    assert [batch["position"].tolist()[-1] for batch in loader] == [10**9 - 1]


@pytest.mark.parametrize("options", [{}, FORK])
@pytest.mark.parametrize("drop_last", [True, False, "pad"])
@pytest.mark.parametrize("n", [5, 24, 27])
def test_streams(n, drop_last, options):
    def loader(**more):
        return make_loader(FakeStream(n), drop_last=drop_last, **{**options, **more})

    with loader() as alone:
        whole = list(alone)
        again = digests(alone)
    with pytest.raises(TypeError):
        len(alone)
    assert len(whole) == (n // 8 if drop_last is True else -(-n // 8))
    seen = [p for batch in whole for p in batch["position"][batch["valid"]].tolist()]
    assert seen == list(range(n // 8 * 8 if drop_last is True else n))
    ranks = [list(loader(rank=rank, world_size=3, engine="inline")) for rank in range(3)]
    for number, batch in enumerate(whole):
        union = [row for rank in ranks for row in _row_digests(rank[number])]
        assert union == _row_digests(batch)
    for step in range(len(whole)):
        resumed = loader(engine="inline")
        resumed.load_state_dict({**alone.state_dict(), "next_batch": step, "finished": False})
        assert digests(resumed) == again[step:]


def test_the_collate_of_a_dataset_comes_first():
    class Own(FakeDataset):
        def collate(self, samples):
            return {"own": torch.zeros(len(samples))} | Collated()(samples)

    assert "own" in next(iter(make_loader(Own(N))))

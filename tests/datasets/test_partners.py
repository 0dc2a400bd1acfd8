from __future__ import annotations

import numpy as np
import pytest

from penstock.core.registry import register
from penstock.core.sample import BadSample
from penstock.datasets.map_dataset import MapDataset
from penstock.pipeline.samplers.random import RandomSampler
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.datasets.test_eager import eager
from tests.memory_storage import MemoryStorage

N = 30


@register("transform", "test_partners_names")
class Names:
    """Adds the index and value of its partners."""

    def __init__(self, most: int = 3, field: str = "others") -> None:
        self.most, self.field = most, field

    def partners(self, rng):
        return int(rng.integers(0, self.most + 1))

    def __call__(self, sample, rng, partners):
        names = [(one["index"], one["x"].tolist()) for one in partners]
        return {**sample, self.field: names, "draw": rng.random()}


@register("transform", "test_partners_double")
def double(sample, rng):
    return {**sample, "x": sample["x"] * 2}


def storage(count: int = N, bad: tuple[int, ...] = ()) -> MemoryStorage:
    return MemoryStorage(
        ["damaged" if i in bad else {"x": np.array([i]), "label": i % 3} for i in range(count)]
    )


def dataset(kind=MapDataset, steps=None, **given):
    steps = steps or {"names": {"_target_": "transform/test_partners_names"}}
    stack = Stack(steps, build_step=build_step)
    return kind(storage(**given), decode=RawDecoder(), transform=stack, seed=5)


def fetch(data, indices, positions, epoch=0):
    return data.fetch(np.array(indices, np.int64), np.array(positions, np.int64), epoch)


def test_partners_are_records_of_other_positions_in_one_read():
    data = dataset().drawing_from(RandomSampler(N, seed=5))
    positions = np.arange(N)
    indices = RandomSampler(N, seed=5).indices(1, 0, N)
    samples = data.fetch(indices, positions, 1)
    assert len(data.storage.reads) == 1 and data.storage.reads[0][:N] == indices.tolist()
    others = [[index for index, _ in sample["others"]] for sample in samples]
    assert {len(group) for group in others} == {0, 1, 2, 3}
    assert sum(len(group) for group in others) == len(data.storage.reads[0]) - N
    assert all(sample["index"] not in group for sample, group in zip(samples, others, strict=True))


@pytest.mark.parametrize("kind", [MapDataset, eager])
def test_partners_are_not_transformed_and_steps_have_their_own(kind):
    steps = {
        "double": {"_target_": "transform/test_partners_double"},
        "first": {"_target_": "transform/test_partners_names"},
        "second": {"_target_": "transform/test_partners_names", "most": 1, "field": "more"},
    }
    samples = fetch(dataset(kind, steps), range(N), range(N))
    assert [sample["x"].tolist() for sample in samples] == [[2 * i] for i in range(N)]
    for name in ("others", "more"):
        assert all(x == [index] for sample in samples for index, x in sample[name])
    assert any(s["others"][:1] != s["more"] for s in samples)


@pytest.mark.parametrize("kind", [MapDataset, eager])
def test_bad_partners_are_drawn_again_and_leave_the_others_as_they_are(kind):
    bad = (2, 5, 9, 11, 13, 17, 18, 20, 21, 26)
    good = [i for i in range(N) if i not in bad]
    before = fetch(dataset(kind), good, good)
    after = fetch(dataset(kind, bad=bad), good, good)
    changed = 0
    for old, new in zip(before, after, strict=True):
        for (was, _), (now, _) in zip(old["others"], new["others"], strict=True):
            assert now not in bad
            assert (now == was) == (was not in bad)
            changed += now != was
        assert old["draw"] == new["draw"]
    assert changed > 3
    assert_same(fetch(dataset(kind, bad=bad), good[::-1], good[::-1])[::-1], after)


def test_without_a_good_partner_the_sample_is_bad():
    data = dataset(count=6, bad=(1, 2, 3, 4, 5))
    samples = [fetch(data, [0], [0], epoch)[0] for epoch in range(20)]
    bad = [sample for sample in samples if isinstance(sample, BadSample)]
    assert bad and bad[0].index == 0 and "no partner could be read" in bad[0].cause
    assert all(sample["others"] == [] for sample in samples if not isinstance(sample, BadSample))

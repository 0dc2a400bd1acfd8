"""A position alone decides its sample, its rank and its draws."""

from __future__ import annotations

import pytest
import torch

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import (
    INLINE,
    NOISE,
    digests,
    kill_worker,
    loader_of,
    overrides,
    seen_in,
    way,
)

TAILS = {"drop": True, "keep": False, "pad": "pad"}


def images(photos, **state):
    """Return the images of two epochs by (epoch, position), with their indices."""
    seed = state.pop("seed", 0)
    given = overrides(photos, sampler="sequential", augment="strong")
    found = {}
    with loader_of(compose([*given, f"seed={seed}"]), **INLINE, **state) as loader:
        for batch in (batch for _ in range(2) for batch in loader):
            rows = zip(
                batch["epoch"], batch["position"], batch["index"], batch["image"], strict=True
            )
            for epoch, position, index, image in rows:
                found[int(epoch), int(position)] = int(index), image
    return found


def test_draws_depend_on_seed_epoch_and_position_alone(photos):
    first = images(photos)
    again = images(photos, batch_size=5)
    assert first.keys() == again.keys() and len(first) == 82
    for place, (index, image) in first.items():
        assert index == again[place][0] and torch.equal(image, again[place][1])
    for position in range(41):  # another record replaces the damaged one at 22
        assert position == 22 or first[0, position][0] == first[1, position][0] == position
        assert not torch.equal(first[0, position][1], first[1, position][1])
    for place, (_, image) in images(photos, seed=1).items():
        assert not torch.equal(first[place][1], image)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_rank_takes_its_part_of_each_global_batch(world_size, tail, photos):
    config = compose(overrides(photos, augment="none"))
    whole = 41 if tail == "keep" else 35 if tail == "drop" else 42
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        with loader_of(config, **INLINE, **ranks, batch_size=7, drop_last=TAILS[tail]) as loader:
            batches = list(loader)
        assert len(batches) == (5 if tail == "drop" else 6)
        for number, batch in enumerate(batches):
            n = min(7, whole - 7 * number)
            start, stop = (7 * number + r * n // world_size for r in (rank, rank + 1))
            expected = [position for position in range(start, stop) if position < 41]
            assert batch["position"][batch["valid"]].tolist() == expected
            assert len(batch["valid"]) >= 1, "a rank without samples has a row"


def test_padding_goes_round_an_epoch_that_is_shorter_than_a_batch(photos):
    config = compose(overrides(photos, augment="none"))
    with loader_of(config, **INLINE, batch_size=100, drop_last="pad") as loader:
        [batch] = loader
    assert batch["position"].tolist() == [position % 41 for position in range(100)]
    assert batch["valid"].tolist() == [position < 41 for position in range(100)]


def test_global_states_are_seeded_by_position_for_a_component_that_draws_from_them(photos):
    config = compose([*overrides(photos), *NOISE])
    expected = digests(config, **INLINE)
    assert len({digest for epoch in expected for digest in epoch}) == 14
    torch.manual_seed(99)
    for engine in ("threads", "processes"):
        assert digests(config, **way(engine)) == expected


def test_a_killed_worker_changes_no_batch(photos, tmp_path):
    given = overrides(photos, augment="strong")
    expected = digests(compose(given), **INLINE)
    found, killed = [], []
    processes = way("processes")
    with loader_of(compose([*given, seen_in(tmp_path)]), **processes) as loader:
        for _ in range(2):
            found.append([])
            for number, batch in enumerate(loader):
                found[-1].append(batch_digest(batch))
                if number == 2:
                    killed.append(kill_worker(tmp_path, spared=killed))
    assert len(killed) == 2 and found == expected

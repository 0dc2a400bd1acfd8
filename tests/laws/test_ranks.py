"""Ranks together give every position of the epoch once, in order, for every tail."""

from __future__ import annotations

import random

import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import ENGINES, INLINE, digests, joined_rows, loader_of, overrides, way
from tests.laws.runs import rows as whole_rows
from tests.shares import in_turn

RANKS = (1, 2, 3, 4, 8)
TAILS = {"drop": True, "keep": False, "pad": "pad"}
# Epochs have 41, 53 or 47 positions; no batch size divides them.
SAMPLERS = (
    "sequential",
    "random",
    "weighted",
    "without",
    "length_bucket",
    "shard_shuffle",
    "torch",
)


@pytest.mark.parametrize(("sampler", "tail"), in_turn([*SAMPLERS, "mix"], [*TAILS], every=4))
def test_the_union_of_the_ranks_is_the_epoch(sampler, tail, photos, packed):
    sizes = (1, 3, 7, 11, 40)
    config = compose(overrides(photos, packed, sampler=sampler, dataset="lmdb"))
    for batch_size in sizes:
        changes = {**INLINE, "batch_size": batch_size, "drop_last": TAILS[tail]}
        alone = whole_rows(config, **changes)
        length = {"weighted": 53, "mix": 47}.get(sampler, 41)
        full, rest = divmod(length, batch_size)
        shapes = [batch_size] * full + ([rest] if rest and tail != "drop" else [])
        assert [len(rows) for rows in alone] == shapes, "every position once"
        for world_size in RANKS if batch_size in (3, 7) else random.Random(length).sample(RANKS, 2):
            joined = joined_rows(config, world_size, **changes)
            assert joined == alone, f"{world_size} ranks, batch size {batch_size}"


CUT = {
    "token_budget": [],
    "packed": [],
    "torch": [
        "sampler.target=tests.laws.torch_components.Growing",
        "loader.batch_size=9",
    ],
}


@pytest.mark.parametrize("sampler", CUT)
def test_ranks_share_batches_of_any_sizes(sampler, photos):
    config = compose([*overrides(photos, sampler=sampler), *CUT[sampler]])
    alone = whole_rows(config, **INLINE)
    sizes = [len(rows) for rows in alone]
    assert sum(sizes) == 41 and len({*sizes}) > 2
    for world_size in (2, 3, 8):
        assert joined_rows(config, world_size, **INLINE) == alone


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dataset", ["image_folder", "memmap"])
@pytest.mark.parametrize("sampler", CUT)
def test_engines_and_resumed_loaders_give_the_same_batches_of_any_sizes(
    sampler, dataset, engine, photos, packed
):
    changes = [*CUT[sampler], "augment=none"]
    config = compose([*overrides(photos, packed, sampler=sampler, dataset=dataset), *changes])
    expected = digests(config, epochs=3, **INLINE)
    assert digests(config, epochs=3, **way(engine)) == expected
    with loader_of(config, **way(engine)) as loader:
        next(iter(loader))
        rest_of_epoch = loader.state_dict()
    with loader_of(config, **way(engine, 1)) as loader:
        loader.load_state_dict(rest_of_epoch)
        assert [batch_digest(batch) for batch in loader] == expected[0][1:]
        assert [batch_digest(batch) for batch in loader] == expected[1]


@pytest.mark.parametrize("collate", ["list", "nested", "pad", "stack"])
def test_a_rank_without_samples_has_an_invalid_row(collate, photos):
    config = compose(overrides(photos, collate=collate))
    changes = {**INLINE, "batch_size": 3, "world_size": 8}
    for rank in range(8):
        with loader_of(config, rank=rank, **changes) as loader:
            batches = list(loader)
        assert len(batches) == 14
        for batch in batches:
            assert len(batch["key"]) == len(batch["valid"]) == len(batch["image"]) >= 1
    assert not batches[-1]["valid"].all() or len(batches[-1]["key"]) == 1


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("sampler", ["identity", "balanced", "infinite", "inference"])
def test_ranks_share_the_batches_of_batch_samplers(sampler, tail, photos, packed):
    config = compose(overrides(photos, packed, sampler=sampler, dataset="lmdb"))
    changes = {**INLINE, "drop_last": TAILS[tail]}
    alone = whole_rows(config, **changes)
    # Only the inference sampler leaves a batch short.
    assert [len(rows) for rows in alone][:-1] == [6] * (len(alone) - 1)
    assert len(alone[-1]) == (5 if sampler == "inference" and tail != "drop" else 6)
    for world_size in RANKS:
        assert joined_rows(config, world_size, **changes) == alone


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("tail", TAILS)
def test_groups_are_never_cut_by_a_rank(tail, world_size, photos):
    base = [o for o in overrides(photos) if not o.startswith("sampler")]
    config = compose([*base, "sampler=laws_groups"])
    changes = {**INLINE, "batch_size": 12, "drop_last": TAILS[tail], "world_size": world_size}
    seen: list[int] = []
    for rank in range(world_size):
        with loader_of(config, rank=rank, **changes) as loader:
            for batch in loader:
                positions = batch["position"][batch["valid"]].tolist()
                groups = {position // 4 for position in positions}
                whole = {p for g in groups for p in range(4 * g, min(4 * g + 4, 41))}
                assert set(positions) == whole, "a group was cut"
                seen += positions
    assert sorted(seen) == list(range(36 if tail == "drop" else 41))


def test_a_batch_size_that_cuts_groups_is_refused(photos):
    base = [o for o in overrides(photos) if not o.startswith("sampler")]
    config = compose([*base, "sampler=laws_groups"])
    with pytest.raises(ValueError, match="cuts groups of 4"):
        loader_of(config, **INLINE)


def test_padding_repeats_positions_with_their_pixels(photos):
    config = compose(overrides(photos, augment="strong"))
    with loader_of(config, **INLINE, batch_size=30, drop_last="pad") as loader:
        first, last = loader
    assert last["valid"].tolist() == [True] * 11 + [False] * 19
    assert last["position"].tolist() == [*range(30, 41), *range(19)]
    for row, padding in enumerate(range(11, 30)):
        assert first["index"][row] == last["index"][padding]
        assert batch_digest({"image": first["image"][row]}) == batch_digest(
            {"image": last["image"][padding]}
        )

"""Transforms that use other samples give the same batches with every engine."""

from __future__ import annotations

import pytest

from penstock import compose
from tests.laws.runs import INLINE, digests, joined_rows, loader_of, overrides, rest, rows

MOSAIC = [
    "augment.train.mosaic={_target_: transform/mosaic, height: 32, width: 40, p: 0.7}",
    "augment.train.small={_target_: transform/random_crop, size: 20}",
    "augment.eval.mosaic={_target_: transform/mosaic, height: 20, width: 20}",
    "augment.train.crop=null",
]
WAYS = {
    "torch, forked": {"engine": "torch", "num_workers": 2},
    "torch, spawned": {"engine": "torch", "num_workers": 1, "multiprocessing_context": "spawn"},
    "threads": {"engine": "threads", "num_workers": 3},
    "processes": {"engine": "processes", "num_workers": 2},
    "two threads": {"engine": "threads", "num_workers": 2},
}


def config_of(photos, packed=None, **content):
    return compose([*overrides(photos, packed, **content), *MOSAIC])


@pytest.fixture(scope="module")
def expected(photos):
    config = config_of(photos)
    return digests(config, **INLINE), digests(config, split="val", **INLINE)


@pytest.mark.parametrize("way", WAYS)
def test_every_engine_makes_the_same_mosaics(way, photos, expected):
    config = config_of(photos)
    assert digests(config, **WAYS[way]) == expected[0]


def test_evaluation_has_the_same_mosaics(photos, expected):
    assert digests(config_of(photos), split="val", **WAYS["processes"]) == expected[1]
    assert expected[1][0] == expected[1][1] and len(set(expected[1][0])) > 1


def test_epochs_samplers_and_places_in_an_epoch_have_their_own_mosaics(photos, expected):
    assert not set(expected[0][0]) & set(expected[0][1])
    with loader_of(config_of(photos, sampler="weighted"), **INLINE) as loader:
        images = [image.numpy().tobytes() for batch in loader for image in batch["image"]]
    assert len(set(images)) == len(images) == 53


@pytest.mark.parametrize("dataset", ["eager", "lmdb", "webdataset", "torch"])
def test_datasets_make_the_same_mosaics(dataset, photos, packed):
    def images(name):
        with loader_of(config_of(photos, packed, dataset=name), **INLINE) as loader:
            return [batch["image"].numpy().tobytes() for batch in loader]

    if dataset == "torch":  # its transform cannot reach other items
        with pytest.raises(ValueError, match="needs other samples of the epoch"):
            images(dataset)
        return
    assert images(dataset) == images("image_folder")


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_make_the_mosaics_of_one_process(world_size, photos):
    config = config_of(photos)
    joined = joined_rows(config, world_size, **INLINE)
    assert joined == rows(config, **INLINE) and len(joined) == 7


def test_a_resumed_epoch_has_the_same_mosaics(photos, expected):
    config = config_of(photos)
    with loader_of(config, **INLINE) as loader:
        assert rest(iter(loader), 3) == expected[0][0][:3]
        state = loader.state_dict()
    with loader_of(config, **WAYS["threads"]) as loader:
        loader.load_state_dict(state)
        assert rest(loader) == expected[0][0][3:]


def test_another_record_replaces_a_partner_that_kills(photos):
    deadly = ["augment.train.deadly={_target_: transform/laws_deadly_partner, record: 6}"]
    config = compose([*overrides(photos, sampler="sequential"), *deadly])
    with loader_of(config, **WAYS["processes"]) as loader:
        hashes = rest(iter(loader))
        state = loader.state_dict()
        positions = state["quarantined"]  # records, which are in order
    assert len(hashes) == 7 and len(positions) == 2 and 6 not in positions
    with loader_of(config, **INLINE) as loader:
        loader.load_state_dict({**state, "next_batch": 0, "finished": False})
        assert rest(loader) == hashes

"""Mixes: whatever computes them, the same; and what would change them is refused by name."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from penstock import compose
from penstock.pipeline.training.run_folder import comparable
from tests.laws.runs import AUGMENTS, IMPORTS, INLINE, LOADER, digests, loader_of, rest, rows

PHOTOS, PACKED = "dataset.sources.photos", "dataset.sources.packed"


def mix(photos, packed, *overrides: str):
    data = [
        "dataset=mix", "dataset.length=44",
        f"{PHOTOS}.dataset=image_folder", f"{PHOTOS}.weight=3", f"{PACKED}.dataset=lmdb",
        f"{PHOTOS}.dataset.storage.path={photos}", f"{PACKED}.dataset.storage.path={packed}/lmdb",
    ]  # fmt: skip
    return compose([IMPORTS, *data, *AUGMENTS["light"], *LOADER, *overrides])


def test_any_ranks_and_any_resume_give_the_same_rows(photos, packed):
    config = mix(photos, packed, "augment=none")
    alone = rows(config, **INLINE)
    joined: list[list[str]] = [[] for _ in alone]
    for rank in range(3):
        for whole, part in zip(
            joined, rows(config, rank=rank, world_size=3, **INLINE), strict=True
        ):
            whole += part
    assert joined == alone
    first, second = digests(config, **INLINE)
    with loader_of(config, **INLINE) as loader:
        for step in (0, 3, len(first)):
            loader.set_epoch(0)
            assert rest(loader, step) == first[:step]
            with loader_of(config, **INLINE) as other:
                other.load_state_dict(loader.state_dict())
                assert [rest(other), rest(other)] == [first[step:], second]


def test_shares_hold_in_every_epoch_and_sources_go_on_where_they_stood(photos, packed):
    config = mix(photos, packed, f"{PACKED}.sampler=sequential", f"{PHOTOS}.weight=1")
    packed_keys: list[str] = []
    with loader_of(config, **INLINE) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            sources, keys = [], []
            for batch in loader:
                sources += batch["source"].tolist()
                keys += batch["key"]
            assert np.bincount(sources).tolist() == [22, 22]
            packed_keys += [key for key, s in zip(keys, sources, strict=True) if s == 1]
        index = loader.dataset.sources["packed"].index
    expected = index.keys(np.arange(66) % 41)
    differing = {then for then, now in zip(expected, packed_keys, strict=True) if then != now}
    assert differing == {"birch/03.jpg"}, "the damaged one, which is replaced"


def test_evaluation_reads_each_source_once_in_order_whatever_its_weight(photos, packed):
    config = mix(photos, packed, f"{PACKED}.weight=0", f"{PHOTOS}.sampler=weighted")
    with loader_of(config, "val", **INLINE) as loader:
        batches = list(loader)
    assert [i for batch in batches for i in batch["index"].tolist()] == list(range(30))
    assert [i for batch in batches for i in batch["source"].tolist()] == [0] * 15 + [1] * 15
    with loader_of(config, **INLINE) as loader:
        assert not any(batch["source"].any() for batch in loader), "weight 0: drawn never"


def test_a_damaged_record_is_replaced_from_its_source(photos, packed):
    config = mix(photos, packed)
    with loader_of(config, **INLINE) as loader:
        expected = loader.dataset.index.column("source")[loader._sampler.indices(0, 0, 44)]
        found = np.concatenate([batch["source"].numpy() for batch in loader])
        assert loader.stats.bad_samples, "the damaged photograph was met"
    assert found.tolist() == expected.tolist()


CHANGES = {
    f"{PHOTOS}.weight=2": "plan.sampler.sources.photos.weight was 3 and is 2",
    f"{PACKED}.sampler=weighted": "plan.sampler.sources.packed.sampler._target_ was sampler/random",
    "dataset.length=43": "plan.sampler.length was 44 and is 43",
    f"{PACKED}.dataset.decode.mode=L": "pixels.decode.packed.decode.mode was RGB and is L",
    "dataset.sources.more.dataset=image_folder": "plan.sampler.sources.more was nothing and is {",
    "dataset.sources.more.weight=0": "data was ",
}


def test_what_would_change_the_batches_is_refused_by_name(photos, packed):
    with loader_of(mix(photos, packed), **INLINE) as loader:
        rest(loader, 2)
        state = loader.state_dict()
    changed = mix(photos, packed, *CHANGES, f"dataset.sources.more.dataset.storage.path={photos}")
    with loader_of(changed, **INLINE) as loader:
        with pytest.raises(ValueError, match="rest of the epoch would not be the same") as caught:
            loader.load_state_dict(state)
    for message in CHANGES.values():
        assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_and_weights_may_move(photos, packed, tmp_path):
    def moved(place, folder):
        weights = [f"{PHOTOS}.sampler=weighted", f"{PHOTOS}.sampler.weights={place}/w.npy"]
        return mix(folder, packed, *weights)

    (tmp_path / "other").mkdir()
    np.save(tmp_path / "w.npy", np.arange(1.0, 42))
    np.save(tmp_path / "other" / "w.npy", np.arange(1.0, 42))
    with loader_of(moved(tmp_path, photos), **INLINE) as loader:
        rest(loader, 2)
        state = loader.state_dict()
        expected = rest(loader_of(moved(tmp_path, photos), **INLINE))[2:]
    shutil.copytree(photos, tmp_path / "photos")
    with loader_of(moved(tmp_path / "other", tmp_path / "photos"), **INLINE) as loader:
        loader.load_state_dict(state)
        assert rest(loader) == expected
    np.save(tmp_path / "other" / "w.npy", np.arange(2.0, 43))
    with loader_of(moved(tmp_path / "other", photos), **INLINE) as loader:
        with pytest.raises(ValueError, match=r"plan\.weights was"):
            loader.load_state_dict(state)


def test_runs_that_differ_in_a_sources_cache_are_equal(photos, packed):
    first, second = mix(photos, packed), mix(photos, packed, f"{PHOTOS}.dataset.cache=ram")
    assert comparable(first) == comparable(second)
    assert comparable(first) != comparable(mix(photos, packed, f"{PHOTOS}.weight=2"))
    assert digests(second, **INLINE) == digests(first, **INLINE)


def test_what_is_wrong_with_a_source_is_said_with_its_name_and_keys(photos, packed, tmp_path):
    (tmp_path / "nothing").mkdir()
    cases = {
        f"{PHOTOS}.dataset.storage.path={tmp_path}/nothing": "source 'photos': image_folder .*: no "
        "image found, .*; set dataset.sources.photos.dataset.storage.path",
        f"{PHOTOS}.sampler=weighted {PHOTOS}.sampler.weights=age": "source 'photos': weighted "
        "sampler: no column of numbers 'age'",
    }
    for overrides, message in cases.items():
        with pytest.raises(ValueError, match=message) as caught:
            loader_of(mix(photos, packed, *overrides.split()), **INLINE)
        assert "\n" not in str(caught.value)


def test_a_source_without_records_to_train_on_is_said(photos, packed):
    none = [f"{PHOTOS}.dataset.storage.path={photos}/train/ash", f"{PHOTOS}.dataset.val_fraction=1"]
    config = mix(photos, packed, *none, f"{PHOTOS}.dataset.storage.labels=null")
    with pytest.raises(ValueError, match="nothing can be drawn of 'photos', which has 0 records"):
        loader_of(config, **INLINE)

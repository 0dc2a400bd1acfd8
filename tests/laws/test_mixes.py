"""Mixes: exact shares on any ranks, and a state names the change that it refuses."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from penstock import compose
from tests.console import penstock
from tests.laws.conftest import make_photos
from tests.laws.runs import (
    AUGMENTS,
    IMPORTS,
    INLINE,
    LOADER,
    digests,
    joined_rows,
    loader_of,
    rest,
    rows,
    run_of,
)

PHOTOS, PACKED = "dataset.sources.photos", "dataset.sources.packed"


def typed(photos, packed, *overrides: str) -> list[str]:
    """Return the overrides of a mix of image files and LMDB."""
    data = [
        "dataset=mix", "dataset.length=44",
        f"{PHOTOS}.dataset=image_folder", f"{PHOTOS}.weight=3", f"{PACKED}.dataset=lmdb",
        f"{PHOTOS}.dataset.storage.path={photos}", f"{PACKED}.dataset.storage.path={packed}/lmdb",
    ]  # fmt: skip
    return [IMPORTS, *data, *AUGMENTS["light"], *LOADER, *overrides]


def mix(photos, packed, *overrides: str):
    return compose(typed(photos, packed, *overrides))


def test_any_ranks_and_any_resume_give_the_same_rows(photos, packed):
    config = mix(photos, packed, "augment=none")
    assert joined_rows(config, 3, **INLINE) == rows(config, **INLINE)
    first, second = digests(config, **INLINE)
    with loader_of(config, **INLINE) as loader:
        for step in (0, 3, len(first)):
            loader.set_epoch(0)
            assert rest(loader, step) == first[:step]
            with loader_of(config, **INLINE) as other:
                other.load_state_dict(loader.state_dict())
                assert [rest(other), rest(other)] == [first[step:], second]


def test_shares_hold_in_every_epoch_and_sources_continue_from_the_last_one(photos, packed):
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
    files = sorted((photos / "train").glob("*/*.jpg"))
    expected = [file.relative_to(photos / "train").as_posix() for file in (files * 2)[:66]]
    differing = {then for then, now in zip(expected, packed_keys, strict=True) if then != now}
    assert differing == {"birch/03.jpg"}, "a record replaces the damaged one"


def test_evaluation_reads_each_source_once_in_order_at_any_weight(photos, packed):
    config = mix(photos, packed, f"{PACKED}.weight=0", f"{PHOTOS}.sampler=weighted")
    with loader_of(config, "val", **INLINE) as loader:
        batches = list(loader)
    assert [i for batch in batches for i in batch["index"].tolist()] == list(range(30))
    assert [i for batch in batches for i in batch["source"].tolist()] == [0] * 15 + [1] * 15
    with loader_of(config, **INLINE) as loader:
        assert not any(batch["source"].any() for batch in loader), "weight 0: drawn never"


def test_a_damaged_record_is_replaced_from_its_source(photos, packed, tmp_path):
    good, packed_good = tmp_path / "good", tmp_path / "packed"
    make_photos(good)
    target = [f"pack.path={packed_good}/lmdb", "pack.num_workers=0"]
    assert penstock("pack", f"dataset.storage.path={good}", *target) == 0
    found = []
    for bad, config in enumerate((mix(good, packed_good), mix(photos, packed))):
        with loader_of(config, **INLINE) as loader:
            found.append([s for batch in loader for s in batch["source"].tolist()])
            assert bool(loader.stats.bad_samples) == bool(bad)
    assert found[0] == found[1] and len(found[0]) == 44


CHANGES = {
    f"{PHOTOS}.weight=2": "plan.sampler.sources.photos.weight was 3 and is 2",
    f"{PACKED}.sampler=weighted": "plan.sampler.sources.packed.sampler._target_ was sampler/random",
    "dataset.length=43": "plan.sampler.length was 44 and is 43",
    f"{PACKED}.dataset.decode.mode=L": "pixels.decode.packed.decode.mode was RGB and is L",
    "dataset.sources.more.dataset=image_folder": "plan.sampler.sources.more was nothing and is {",
    "dataset.sources.more.weight=0": "data was ",
}


def test_a_state_names_the_change_that_it_refuses(photos, packed):
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


def test_a_source_may_have_another_cache_in_the_same_run(photos, packed, tmp_path):
    first, second = (typed(photos, packed, *more) for more in ([], [f"{PHOTOS}.dataset.cache=ram"]))
    run = run_of(first, tmp_path, steps=1)
    assert run_of(second, tmp_path, steps=2) == run
    assert run_of(typed(photos, packed, f"{PHOTOS}.weight=2"), tmp_path, steps=3) != run
    assert digests(compose(second), **INLINE) == digests(compose(first), **INLINE)


def test_an_error_of_a_source_names_it_and_its_keys(photos, packed, tmp_path):
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


def test_a_source_without_records_is_refused(photos, packed):
    none = [f"{PHOTOS}.dataset.storage.path={photos}/train/ash", f"{PHOTOS}.dataset.val_fraction=1"]
    config = mix(photos, packed, *none, f"{PHOTOS}.dataset.storage.labels=null")
    with pytest.raises(ValueError, match=r"'photos'.* 0 records.*sources\.photos\.weight=0"):
        loader_of(config, **INLINE)

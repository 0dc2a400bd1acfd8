"""The same batches with any cache and without one, however they are computed; and resume across."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock import compose
from penstock.pipeline.loader.digest import batch_digest
from tests.laws.runs import INLINE, digests, loader_of, overrides
from tests.pipeline.loader.fakes import kill_worker

RAM = "dataset/cache=ram"
CACHES = {
    "keep encoded": [RAM],
    "keep decoded": [RAM, "dataset.cache.what=decoded"],
    "decoded, a part": [RAM, "dataset.cache.what=decoded", "dataset.cache.max_bytes=400KB"],
    "keep encoded, a part": [RAM, "dataset.cache.max_bytes=16KB"],
    "disk encoded": ["dataset/cache=disk"],
    "disk decoded": ["dataset/cache=disk", "dataset.cache.what=decoded"],
}  # fmt: skip
WAYS = {
    "threads": {"engine": "threads", "num_workers": 3, "processes": 0},
    "processes": {"engine": "processes", "num_workers": 2, "processes": 2, "read_ahead": 2},
    "torch, fork": {"engine": "torch", "num_workers": 2, "multiprocessing_context": "fork"},
    "torch, forkserver": {"engine": "torch", "num_workers": 2},
    "spawn": {
        "engine": "processes", "num_workers": 2, "processes": 1, "multiprocessing_context": "spawn",
    },
}  # fmt: skip
# Every cache inline, and each by another way.
CASES = [
    (cache, way) for n, cache in enumerate(CACHES) for way in ("inline", [*WAYS][n % len(WAYS)])
]


def _config(photos: Path, folder: Path, cache: str, **content: Any) -> dict[str, Any]:
    given = list(CACHES[cache])
    if cache.startswith("disk"):
        given.append(f"dataset.cache.path={folder}")
    elif not any("max_bytes" in each for each in given):
        given.append("dataset.cache.max_bytes=8MB")
    return compose([*overrides(photos, **content), *given])


@pytest.fixture(scope="module")
def expected(photos):
    return digests(compose(overrides(photos, augment="imagenet")), epochs=3, **INLINE)


@pytest.mark.parametrize("cache, way", CASES)
def test_batches_are_those_without_a_cache(cache, way, photos, expected, tmp_path):
    config = _config(photos, tmp_path, cache, augment="imagenet")
    changes = INLINE if way == "inline" else WAYS[way]
    with loader_of(config, **changes) as loader:
        given = [[batch_digest(batch) for batch in loader] for _ in range(3)]
        times = loader.stats.times
    assert given == expected
    assert times.hits + times.misses >= 3 * 41
    assert times.hits > 0
    if "a part" not in cache:
        # 40 good records, each of which another process may have read at the same time.
        assert times.hits >= 75
    assert times.damaged == 0


def test_evaluation_goes_through_a_cache_of_its_own(photos, tmp_path):
    plain = compose(overrides(photos))
    config = _config(photos, tmp_path, "disk encoded")
    for _ in range(2):
        assert digests(config, split="val", **INLINE) == digests(plain, split="val", **INLINE)
        assert digests(config, **INLINE) == digests(plain, **INLINE)


def test_a_run_resumes_with_another_cache_or_none(photos, tmp_path):
    configs = [_config(photos, tmp_path, cache) for cache in ("keep decoded", "disk encoded")] + [
        compose(overrides(photos))
    ]
    (expected,) = digests(configs[2], epochs=1, **INLINE)
    for first, second in ((0, 1), (1, 2), (2, 0)):
        with loader_of(configs[first], **INLINE) as loader:
            batches = iter(loader)
            begun = [batch_digest(batch) for batch in islice(batches, 3)]
            state = loader.state_dict()
            batches.close()
        with loader_of(configs[second], **INLINE) as loader:
            loader.load_state_dict(state)
            assert begun + [batch_digest(batch) for batch in loader] == expected


@pytest.mark.slow
def test_a_worker_that_is_killed_harms_no_batch_of_the_others(photos, tmp_path, expected):
    config = _config(photos, tmp_path, "keep decoded", augment="imagenet")
    with loader_of(config, engine="processes", num_workers=2, processes=2) as loader:
        given, killed = [], []
        for epoch in range(3):
            given.append([])
            for number, batch in enumerate(loader):
                given[-1].append(batch_digest(batch))
                if number == 1 and epoch < 2:
                    killed.append(kill_worker(loader, 0, spared=killed))
        assert given == expected


def test_hits_and_misses_are_in_the_stats_and_only_where_there_is_a_cache(photos, tmp_path):
    with loader_of(_config(photos, tmp_path, "keep encoded"), **INLINE) as loader:
        for _ in range(2):
            list(loader)
        stats = loader.stats
        assert stats.times.hit_rate == pytest.approx(0.48, abs=0.05)
        assert stats.as_dict()["hits"] == stats.times.hits > 0
        assert f"of {stats.times.hits + stats.times.misses} hit" in str(stats)
    with loader_of(compose(overrides(photos)), **INLINE) as loader:
        list(loader)
        assert loader.stats.times.hit_rate is None
        assert "hit_rate" not in loader.stats.as_dict()
        assert "cache" not in str(loader.stats)


def test_an_eager_data_set_can_be_read_from_a_cache_on_disk(photos, tmp_path):
    plain = digests(compose(overrides(photos, dataset="eager")), **INLINE)
    config = _config(photos, tmp_path, "disk encoded", dataset="eager")
    for _ in range(2):
        assert digests(config, **INLINE) == plain


def test_runs_that_differ_in_their_cache_are_equal_runs():
    from penstock.pipeline.training.run_folder import comparable

    first, second = compose([]), compose(["dataset/cache=ram", "dataset.cache.max_bytes=1MB"])
    assert comparable(first) == comparable(second)
    assert comparable(first) != comparable(compose(["seed=9"]))

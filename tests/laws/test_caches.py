"""A cache changes no batch, and a run resumes with another one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import (
    INLINE,
    digests,
    kill_worker,
    loader_of,
    overrides,
    run_of,
    seen_in,
)

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
    "threads": {"engine": "threads", "num_workers": 3},
    "processes": {"engine": "processes", "num_workers": 2},
    "torch": {"engine": "torch", "num_workers": 2},
    "torch, spawned": {"engine": "torch", "num_workers": 2, "multiprocessing_context": "spawn"},
}  # fmt: skip
# Every cache inline and with one other engine.
CASES = [
    (cache, way) for n, cache in enumerate(CACHES) for way in ("inline", [*WAYS][n % len(WAYS)])
]


def _config(
    photos: Path, folder: Path, cache: str, pids: Path | None = None, **content: Any
) -> dict[str, Any]:
    given = [*CACHES[cache], *([seen_in(pids)] if pids else [])]
    if cache.startswith("disk"):
        given.append(f"dataset.cache.path={folder}")
    elif not any("max_bytes" in each for each in given):
        given.append("dataset.cache.max_bytes=8MB")
    return compose([*overrides(photos, **content), *given])


@pytest.fixture(scope="module")
def expected(photos):
    return digests(compose(overrides(photos, augment="imagenet")), epochs=3, **INLINE)


@pytest.mark.parametrize("cache, way", CASES)
def test_a_cache_does_not_change_the_batches(cache, way, photos, expected, tmp_path):
    config = _config(photos, tmp_path, cache, augment="imagenet")
    changes = INLINE if way == "inline" else WAYS[way]
    with loader_of(config, **changes) as loader:
        given = [[batch_digest(batch) for batch in loader] for _ in range(3)]
        times = loader.stats.times
    assert given == expected
    assert times.hits + times.misses >= 3 * 41
    assert times.hits > 0
    if "a part" not in cache:
        # Two processes may read each of the 40 good records at the same time.
        assert times.hits >= 75
    assert times.damaged == 0


def test_evaluation_has_its_own_cache(photos, tmp_path):
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
def test_a_killed_worker_changes_no_batch(photos, tmp_path, expected):
    pids = tmp_path / "pids"
    pids.mkdir()
    config = _config(photos, tmp_path, "keep decoded", pids, augment="imagenet")
    with loader_of(config, engine="processes", num_workers=2) as loader:
        given, killed = [], []
        for epoch in range(3):
            given.append([])
            for number, batch in enumerate(loader):
                given[-1].append(batch_digest(batch))
                if number == 1 and epoch < 2:
                    killed.append(kill_worker(pids, spared=killed))
        assert given == expected


def test_only_a_loader_with_a_cache_reports_hits(photos, tmp_path):
    with loader_of(_config(photos, tmp_path, "keep encoded"), **INLINE) as loader:
        for _ in range(2):
            list(loader)
        times = loader.stats.times
        assert times.hit_rate == pytest.approx(0.48, abs=0.05)
        assert times.hit_rate == times.hits / (times.hits + times.misses) > 0
        assert f"of {times.hits + times.misses:.0f} hit" in str(loader.stats)
    with loader_of(compose(overrides(photos)), **INLINE) as loader:
        list(loader)
        assert loader.stats.times.hit_rate is None
        assert "cache" not in str(loader.stats)


def test_an_eager_dataset_reads_a_cache_on_disk(photos, tmp_path):
    plain = digests(compose(overrides(photos, dataset="eager")), **INLINE)
    config = _config(photos, tmp_path, "disk encoded", dataset="eager")
    for _ in range(2):
        assert digests(config, **INLINE) == plain


def test_a_run_resumes_with_another_cache(photos, tmp_path):
    plain = overrides(photos)
    first = run_of(plain, tmp_path, steps=1)
    assert run_of([*plain, RAM, "dataset.cache.max_bytes=1MB"], tmp_path, steps=2) == first
    assert run_of([*plain, "seed=9"], tmp_path, steps=3) != first

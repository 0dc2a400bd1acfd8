"""Pinned memory that is reused gives the same batches on real data."""

from __future__ import annotations

import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import DATASETS, INLINE, digests, loader_of, overrides
from tests.pipeline.loader.staged import FakeMemory, use_instead_of_cuda

THREADS = {"engine": "threads", "num_workers": 2, "multiprocessing_context": "fork"}
PROCESSES = {**THREADS, "engine": "processes", "processes": 2}


@pytest.mark.parametrize("way", [THREADS, PROCESSES], ids=["threads", "processes"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_pinned_memory_changes_nothing(
    dataset,
    way,
    photos,
    packed,
    monkeypatch,
):
    config = compose(overrides(photos, packed, dataset=dataset, augment="imagenet"))
    expected = digests(config, **INLINE)
    use_instead_of_cuda(monkeypatch, FakeMemory())
    with loader_of(config, **way) as loader:
        kept = [list(loader) for _ in range(2)]
        assert [[batch_digest(batch) for batch in epoch] for epoch in kept] == expected
        assert [batch_digest(batch) for batch in loader] not in expected, "a third epoch"
    assert [[batch_digest(batch) for batch in epoch] for epoch in kept] == expected

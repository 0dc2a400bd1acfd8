"""Batches stay as they are while the loader reuses its memory.

On a machine with CUDA this memory is page-locked.
"""

from __future__ import annotations

import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import DATASETS, INLINE, digests, loader_of, overrides

THREADS = {"engine": "threads", "num_workers": 2}
PROCESSES = {**THREADS, "engine": "processes"}


@pytest.mark.parametrize("way", [THREADS, PROCESSES], ids=["threads", "processes"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_kept_batches_stay_the_same_while_the_loader_reuses_its_memory(
    dataset, way, photos, packed
):
    config = compose(overrides(photos, packed, dataset=dataset, augment="imagenet"))
    expected = digests(config, **INLINE)
    with loader_of(config, **way) as loader:
        kept = [list(loader) for _ in range(2)]
        assert [[batch_digest(batch) for batch in epoch] for epoch in kept] == expected
        assert [batch_digest(batch) for batch in loader] not in expected, "a third epoch"
    assert [[batch_digest(batch) for batch in epoch] for epoch in kept] == expected

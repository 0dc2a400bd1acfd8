"""What is said before training."""

from __future__ import annotations

import pytest

from penstock.pipeline.loader.stats import LoaderStats
from penstock.pipeline.training.report import _size


@pytest.mark.parametrize(
    ("samples", "batches", "text"),
    [(1, 1, "1 sample in 1 batch"), (1024, 16, "1,024 samples in 16 batches")],
)
def test_one_is_no_plural(samples, batches, text):
    class Loader:
        dataset = range(samples)
        stats = LoaderStats()

        def __len__(self):
            return batches

    assert _size(Loader()) == text

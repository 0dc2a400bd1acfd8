"""What is said before training, and counted while it goes."""

from __future__ import annotations

import pytest

from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.stats import LoaderStats
from penstock.pipeline.training.report import Meter, _size
from tests.deferred import Deferred
from tests.pipeline.loader.fakes import FakeDataset, make_loader


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


def test_page_locked_memory_is_counted_where_there_is_an_accelerator():
    settings = {"engine": "processes", "num_workers": 1}
    with make_loader(FakeDataset(8), **settings) as loader:
        assert "pinned_mb" not in Meter(DeviceQueue(loader, "cpu")).counts()
        with Deferred(0, "eager") as device:
            queue = DeviceQueue(loader, "cpu", accelerator=device)
            for _ in queue:
                assert Meter(queue).counts()["pinned_mb"] > 0

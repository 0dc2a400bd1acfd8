"""What is said before training, and counted while it goes."""

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.loader.device_queue import DeviceQueue
from penstock.pipeline.loader.stats import LoaderStats
from penstock.pipeline.training.report import Meter, _size
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


def test_page_locked_memory_is_counted_where_there_is_a_gpu(monkeypatch):
    with make_loader(FakeDataset(8)) as loader:
        meter = Meter(DeviceQueue(loader, "cpu"))
        assert "pinned_mb" not in meter.counts()
        held = {"allocated_bytes.current": 3 << 20, "allocated_bytes.peak": 5 << 20}
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: held)
        assert meter.counts()["pinned_mb"] == pytest.approx(3.146, abs=1e-3)

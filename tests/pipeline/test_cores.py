"""Cores that a process may use: affinity, ranks."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.core.processes import default_workers
from penstock.pipeline.loader.settings import LoaderSettings


def set_cores(monkeypatch, count):
    monkeypatch.setattr("penstock.core.processes._QUOTA", Path("none"))
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)), raising=False)


def test_ranks_of_this_machine_share_the_cores(monkeypatch):
    set_cores(monkeypatch, 8)
    for ranks, workers in (("1", 8), ("3", 2), ("20", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert default_workers() == LoaderSettings().workers == workers
        assert LoaderSettings(num_workers=11).workers == 11, "what is asked for holds"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    set_cores(monkeypatch, 256)
    assert default_workers() == 32

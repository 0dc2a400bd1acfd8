"""Cores that a process may use: affinity, ranks."""

from __future__ import annotations

import os

import pytest

from penstock.core.processes import default_workers, usable_cores
from penstock.pipeline.loader.settings import LoaderSettings


def set_cores(monkeypatch, count):
    monkeypatch.setattr("penstock.core.processes._quota_of", lambda cgroup: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)), raising=False)


def test_the_affinity_holds(monkeypatch):
    set_cores(monkeypatch, 8)
    assert usable_cores() == 8
    monkeypatch.setattr("penstock.core.processes._quota_of", lambda cgroup: 3)
    assert usable_cores() == 3


def test_ranks_of_this_machine_share_the_cores(monkeypatch):
    set_cores(monkeypatch, 8)
    for ranks, workers in (("1", 8), ("3", 2), ("20", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert default_workers() == LoaderSettings().workers == workers
        assert LoaderSettings(num_workers=11).workers == 11, "what is asked for holds"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    set_cores(monkeypatch, 256)
    assert default_workers() == 32
    for wrong in (-1, "many"):
        with pytest.raises(ValueError, match=r"loader.num_workers is .*or input should be 'auto'"):
            LoaderSettings(num_workers=wrong)

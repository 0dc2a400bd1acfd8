"""Cores that a process may use: affinity, quotas of either cgroup version, ranks."""

from __future__ import annotations

import os

import pytest

from pipeline.cores import default_workers, usable_cores
from pipeline.loader.settings import LoaderSettings

CORES = 8


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CORES)), raising=False)


def _machine(root, cgroup, **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {"cpu_DOT_max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu_DOT_max": "max 100000\n"}, CORES),
        ("0::/\n", {"cpu_DOT_max": "5000 100000\n"}, 1),
        ("0::/a/b\n", {"a__cpu_DOT_max": "400000 100000", "a__b__cpu_DOT_max": "max 100000"}, 4),
        ("0::/not/seen/here\n", {"cpu_DOT_max": "200000 100000\n"}, 2),
        ("0::/\n", {}, CORES),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n",
            {
                "cpu,cpuacct__x__cpu_DOT_cfs_quota_us": "150000\n",
                "cpu,cpuacct__x__cpu_DOT_cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            "4:cpu:/x\n",
            {"cpu__cpu_DOT_cfs_quota_us": "-1\n", "cpu__cpu_DOT_cfs_period_us": "100000\n"},
            CORES,
        ),
    ],
)
def test_the_quota_of_every_group_holds(tmp_path, cgroup, files, expected):
    assert usable_cores(_machine(tmp_path, cgroup, **files)) == expected


def test_without_cgroups_the_affinity_holds(tmp_path):
    assert usable_cores(tmp_path) == CORES


def test_ranks_of_this_machine_share_the_cores(monkeypatch):
    monkeypatch.setattr("pipeline.cores._quotas", lambda root: iter(()))
    for ranks, workers in (("1", 8), ("3", 2), ("20", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert default_workers() == LoaderSettings().workers == workers
        assert LoaderSettings(num_workers=11).workers == 11, "what is asked for holds"
    assert LoaderSettings(processes=5).workers == 5, "each process needs a worker"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(256)), raising=False)
    assert default_workers() == 32
    for wrong in (-1, "many"):
        with pytest.raises(ValueError, match=r"loader.num_workers is .*needs 0 or more, or auto"):
            LoaderSettings(num_workers=wrong)

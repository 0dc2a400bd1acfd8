"""The cache of groups: what is kept, and threads that meet at one group."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.datasets.files.group_cache import GroupCache


def reader(cache, loads):
    def get(key, size=10):
        return cache.get(key, lambda: loads.append(key) or (f"group {key}", size))

    return get


def test_the_groups_used_last_are_kept():
    loads = []
    get = reader(GroupCache(20), loads)
    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [f"group {k}" for k in (1, 2, 1, 3, 1, 2)]
    assert loads == [1, 2, 3, 2], "2 gave way to 3, since 1 had been used later"


def test_one_group_is_kept_whatever_its_size():
    loads = []
    get = reader(GroupCache(0), loads)
    for key in (1, 1, 2, 2, 2, 1):
        get(key, size=10**12)
    assert loads == [1, 2, 1]


def test_threads_that_want_one_group_load_it_once():
    loads = []
    cache = GroupCache(100)
    together = threading.Barrier(8)

    def work(_):
        together.wait(120)
        return cache.get("a", lambda: loads.append(1) or (object(), 1))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    assert loads == [1]


def test_a_group_that_cannot_be_loaded_is_tried_again():
    cache = GroupCache(100)

    def fail():
        raise OSError("once")

    with pytest.raises(OSError, match="once"):
        cache.get("a", fail)
    assert cache.get("a", lambda: ("there", 1)) == "there"

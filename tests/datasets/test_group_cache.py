"""The cache of groups: which groups it keeps, and threads that want the same group."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.datasets.files.group_cache import GroupCache


@pytest.mark.parametrize(
    ("limit", "wanted", "loaded"),
    [
        (20, [1, 2, 1, 3, 1, 2], [1, 2, 3, 2]),  # 3 replaces 2, and 1 was used later
        (0, [1, 1, 2, 2, 2, 1], [1, 2, 1]),  # one group is kept, whatever its size
    ],
)
def test_the_groups_used_last_are_kept(limit, wanted, loaded):
    loads, cache = [], GroupCache(limit)
    found = [cache.get(k, lambda k=k: loads.append(k) or (f"group {k}", 10)) for k in wanted]
    assert found == [f"group {k}" for k in wanted] and loads == loaded


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

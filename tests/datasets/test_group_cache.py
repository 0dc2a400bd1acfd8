"""The cache of groups: which groups it keeps."""

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

"""Files that one machine sends to another one of a Ray cluster."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.core.machine_cache import received
from penstock.core.ray_cluster import SentFiles
from tests.cluster import another_machine, local_cluster

pytestmark = pytest.mark.slow


def test_a_machine_fetches_a_file_that_it_lacks_and_the_store_keeps_none_of_it(
    tmp_path, monkeypatch
):
    import ray

    file = str(tmp_path / "rows.npy")
    np.save(file, expected := np.random.default_rng(0).integers(0, 256, 40 << 20, np.uint8))
    with local_cluster() as cluster, another_machine(cluster, tmp_path) as far:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        sent = SentFiles.of([file], "a test")

        @ray.remote(resources=far)
        def there():
            with sent.received():
                assert received(file) != file
                return int(np.load(received(file)).sum())

        assert len(pickle.dumps(sent)) < 1000, "the file is not put into the store"
        assert ray.get(there.remote()) == int(expected.sum())

"""What the server has imported is there in its workers, and stays shared with them."""

from __future__ import annotations

import gc
import json
import sys

import psutil
import pytest

from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

LEAF = "penstock.datasets.storages.webdataset.storage"


class _Tells(FakeDataset):
    """Writes what a collection adds to its process, and whether this has imported a leaf itself."""

    def __init__(self, n, told):
        super().__init__(n)
        self.told = told

    def __setstate__(self, state):
        self.__dict__.update(state)
        before = psutil.Process().memory_full_info().uss
        gc.collect()
        added = psutil.Process().memory_full_info().uss - before
        own = {id(each) for each in gc.get_objects()}  # without what the server had
        self.told.write_text(json.dumps([added / 1e6, id(sys.modules[LEAF]) in own]))


@pytest.mark.parametrize("engine", ["processes", "torch"])
def test_a_worker_imports_no_leaf_and_copies_nothing_when_it_collects(no_server, tmp_path, engine):
    settings = {"processes": 1} if engine == "processes" else {}
    dataset = _Tells(20, tmp_path / "told.json")
    with make_loader(
        dataset, engine=engine, num_workers=1, multiprocessing_context="forkserver", **settings
    ) as loader:
        assert digests(loader)
    added_megabytes, has_imported = json.loads(dataset.told.read_text())
    assert not has_imported
    assert added_megabytes < 15

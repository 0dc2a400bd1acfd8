"""What tests of data share."""

import pytest

from penstock.datasets.storages.hdf5 import storage


@pytest.fixture
def unguarded(monkeypatch):
    """Look into HDF5 files in this process: one of its own, half a second each time, is for damage.

    `storages/test_hdf5_damage.py` has that, and every process that a contract starts.
    """
    monkeypatch.setattr(storage, "run_guarded", lambda call, where: call())

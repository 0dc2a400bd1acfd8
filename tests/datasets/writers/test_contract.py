"""The writers of arrays and of LMDB keep the contract of writers, part by part."""

from __future__ import annotations

import pytest

from penstock.datasets.storages.arrays import MemmapWriter, NpyShardsWriter, PtShardsWriter
from penstock.datasets.storages.hdf5 import Hdf5Writer
from penstock.datasets.storages.lmdb import LmdbWriter
from tests.datasets.writers.writer_contract import check_writer

WRITERS = [Hdf5Writer, LmdbWriter, MemmapWriter, NpyShardsWriter, PtShardsWriter]


@pytest.mark.parametrize("kind", WRITERS)
def test_contract(tmp_path, kind):
    def make():
        writer = kind()
        writer.part_records = 5
        return writer

    check_writer(make, tmp_path)

"""Arrow as it is written in parts."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.datasets.storages.arrow import ArrowStorage, ArrowWriter
from penstock.datasets.writing import write_storage
from tests.datasets.writers.writer_contract import ListedRecords, assert_equal_records, check_writer


def test_contract(tmp_path):
    check_writer(lambda: ArrowWriter(group_rows=3, part_records=5), tmp_path)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_data_comes_back_as_it_was(tmp_path, compression):
    listed = {str(n): {"image": b"jpeg %d" % n, "mask": np.full((64, 64), n, np.uint8),
                       "caption": "again " * 50} for n in range(40)}  # fmt: skip
    source = ListedRecords(listed)
    for folder, writer in (
        ("plain", ArrowWriter()),
        ("small", ArrowWriter(compression=compression)),
    ):
        write_storage(writer, tmp_path / folder, source)
    assert_equal_records(ArrowStorage(str(tmp_path / "small")), source)
    plain, small = (sum(f.stat().st_size for f in (tmp_path / n).iterdir())
                    for n in ("plain", "small"))  # fmt: skip
    assert small < plain / 4

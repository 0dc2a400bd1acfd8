"""Arrow as it is written in parts."""

from __future__ import annotations

from penstock.datasets.storages.arrow import ArrowWriter
from tests.contracts.writer import check_writer


def test_contract(tmp_path):
    check_writer(lambda: ArrowWriter(group_rows=3, part_records=5), tmp_path)

"""Parquet as it is written in parts."""

from __future__ import annotations

from datasets.writers.parquet import ParquetWriter
from tests.contracts.writer import check_writer


def test_contract(tmp_path):
    check_writer(lambda: ParquetWriter(group_rows=3, part_records=5), tmp_path)

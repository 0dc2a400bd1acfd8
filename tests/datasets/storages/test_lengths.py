"""The index's column of lengths, of Parquet and Arrow tables."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.parquet import ParquetStorage

TABLE = pa.table(
    {
        "tokens": pa.array([[1, 2], [], None, [3, 4, 5], [6]], pa.list_(pa.int16())),
        "audio": pa.array([[1.0] * n for n in (9, 8, 7, 6, 5)], pa.large_list(pa.float32())),
        "count": pa.array([5, 4, 0, 2, 1], pa.uint8()),
        "name": ["a", "b", "c", "d", "e"],
    }
)


@pytest.fixture(params=["parquet", "arrow"])
def opened(request, tmp_path):
    if request.param == "parquet":
        pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=2)
        pq.write_table(TABLE, tmp_path / "b.parquet")
        return lambda **more: ParquetStorage(str(tmp_path), **more)
    for name in "ab":
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as file:
            with pa.ipc.new_file(file, TABLE.schema) as writer:
                writer.write_table(TABLE, max_chunksize=2)
    return lambda **more: ArrowStorage(str(tmp_path), **more)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [2, 0, 0, 3, 1]),
        ({"length_column": "audio"}, [9, 8, 7, 6, 5]),
        ({"length_column": "count"}, [5, 4, 0, 2, 1]),
        ({"length_column": "audio", "columns": ["name"]}, [9, 8, 7, 6, 5]),
    ],
)
def test_lengths_are_counted(opened, arguments, expected):
    lengths = opened(**arguments).index.column("length")
    assert lengths.dtype == np.int64 and lengths.tolist() == expected * 2


def test_without_a_list_of_tokens_nothing_is_counted(opened):
    assert "length" not in opened(columns=["audio", "name"]).index.columns


@pytest.mark.parametrize(
    ("column", "message"),
    [("words", "no column 'words' for length_column; columns: tokens"), ("name", "is string")],
)
def test_a_column_that_says_no_lengths(opened, column, message):
    with pytest.raises(ValueError, match=message):
        len(opened(length_column=column))

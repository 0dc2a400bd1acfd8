"""Packed Parquet: the view of other programs, values of late records, and damage."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.sample import BadRecord
from penstock.datasets.storages.parquet import ParquetStorage, ParquetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.packing import assert_equal
from tests.contracts.records import ListedRecords


def records(count):
    return {
        f"k{i}": {
            "image": b"jpeg %d" % i,
            "label": i % 2,
            "boxes": np.full((i % 3, 4), i, np.float32),
            "tokens": np.full(i % 3, i, np.int16),
            "mask": np.full((2 + i % 2, 3 + i % 2), i, np.uint8),
            "caption": f"ü {i}",
            "tags": ["a", {"b": i}],
            "width": i,
        }
        for i in range(count)
    }


def test_other_programs_see_plain_columns(tmp_path):
    source = ListedRecords(records(25), ("cat", "dog"))
    write_storage(ParquetWriter(group_rows=4, part_records=10), tmp_path / "p", source)
    names = sorted(file.name for file in (tmp_path / "p").iterdir())
    assert names == [f"part-0000{i}-of-00003.parquet" for i in range(3)]
    footer = pq.read_metadata(tmp_path / "p" / names[0])
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [4, 4, 2]
    table = pa.concat_tables(pq.read_table(tmp_path / "p" / name) for name in names)
    assert table.schema.field("tokens").type == pa.list_(pa.int16())
    assert table.column("tokens")[5].as_py() == [5, 5]
    assert table.column("image")[7].as_py() == {"bytes": b"jpeg 7", "path": "k7"}
    assert table.column("penstock_rest").null_count == 0, "tags, and arrays of many dimensions"
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"names": ["cat", "dog"], "_type": "ClassLabel"}
    few = ParquetStorage(str(tmp_path / "p"), columns=["label", "caption"]).read(np.array([3]))
    assert few[0].fields == {"label": 1, "caption": "ü 3"}


def test_values_that_the_first_records_lack_come_back(tmp_path):
    found = records(100)
    found["k37"] |= {"tokens": np.zeros((1, 5), np.float16), "caption": None, "new": b"x",
                     "width": 1 << 70, "a/b": 1.5, "": [None], "Boxes": np.zeros(()),
                     "turned": np.zeros((2, 0), "<c8")}  # fmt: skip
    del found["k38"]["mask"], found["k38"]["image"]
    found["k39"]["image"] = np.zeros((2, 2, 3), np.uint8)
    source = ListedRecords(found, ("cat", "dog"))
    write_storage(ParquetWriter(), tmp_path / "p", source)
    assert_equal(ParquetStorage(str(tmp_path / "p")), source.records)
    few = ParquetStorage(str(tmp_path / "p"), columns=["mask", "boxes"]).read(np.array([37]))
    assert sorted(few[0].fields) == ["boxes", "mask"]


def test_a_damaged_column_of_bytes_is_a_bad_record(tmp_path):
    write_storage(ParquetWriter(), tmp_path / "p", ListedRecords(records(40)))
    [file] = (tmp_path / "p").iterdir()
    table = pq.read_table(file)
    at = table.schema.get_field_index("penstock_rest")
    values = table.column(at).to_pylist()
    whole = values[37]
    rng = np.random.default_rng(0)
    for n in range(40):
        values[37] = bytearray(whole[: len(whole) - n // 2 * (n % 2)])
        values[37][rng.integers(len(values[37]))] ^= 1 << int(rng.integers(8))
        changed = table.set_column(at, table.schema.field(at), pa.array(values, pa.binary()))
        pq.write_table(changed, file)
        good, bad = ParquetStorage(str(tmp_path / "p")).read(np.array([36, 37]))
        assert good.fields["width"] == 36
        assert not isinstance(bad, BadRecord) or "penstock_rest': its fields cannot" in bad.cause

"""A record batch is found as pyarrow finds it and written as pyarrow reads it."""

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.arrow_batch import ByteStrings, read_batch, write_batch
from datasets.index import Index, write_index

ROOT = Path(__file__).resolve().parents[2]


def mapped(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def write_arrow(path, *batches, metadata=None):
    schema = batches[0].schema.with_metadata(metadata)
    with pa.ipc.new_file(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_buffers_are_where_pyarrow_finds_them(tmp_path, rows):
    texts = pa.array([b"x" * (n % 7) for n in range(rows)], pa.binary())
    numbers = {
        str(dtype): pa.array(np.arange(rows).astype(dtype)) for dtype in ("u1", "i8", "f2", "f8")
    }
    written = pa.record_batch({"key": texts, **numbers})
    metadata = {b"a": b"1", b"some": bytes(300), b"": b""}
    write_arrow(tmp_path / "x", written, metadata=metadata)

    found = read_batch(mapped(tmp_path / "x"))
    assert found.num_rows == rows
    assert found.metadata == metadata
    with pa.memory_map(str(tmp_path / "x")) as source:
        columns = pa.ipc.open_file(source).get_batch(0).columns
    buffers = [buffer for column in columns for buffer in column.buffers()]
    content = (tmp_path / "x").read_bytes()
    assert len(found.buffers) == len(buffers)
    for (start, size), buffer in zip(found.buffers, buffers, strict=True):
        wanted = b"" if buffer is None else buffer.to_pybytes()
        assert content[start : start + size] == wanted


NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NUMBERS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")


@given(
    rows=st.one_of(st.integers(0, 17), st.integers(0, 300)),
    kinds=st.dictionaries(NAMES, st.sampled_from([*NUMBERS, "<i4 text", "<i8 text"]), max_size=6),
    metadata=st.dictionaries(st.binary(max_size=9), st.binary(max_size=99), max_size=3),
    seed=st.integers(0, 9),
)
def test_pyarrow_reads_what_is_written(tmp_path_factory, rows, kinds, metadata, seed):
    rng = np.random.default_rng(seed)
    columns = {}
    for name, kind in kinds.items():
        dtype, _, text = kind.partition(" ")
        if text:
            texts = [rng.bytes(n) for n in rng.integers(0, 20, rows).tolist()]
            offsets = np.cumsum([0, *map(len, texts)]).astype(dtype)
            columns[name] = ByteStrings(offsets, b"".join(texts))
        else:
            columns[name] = np.frombuffer(rng.bytes(rows * np.dtype(dtype).itemsize), dtype, rows)
    path = tmp_path_factory.mktemp("arrow") / "x"
    with open(path, "wb") as file:
        write_batch(file, columns, num_rows=rows, metadata=metadata)

    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        assert reader.num_record_batches == 1
        check_batch(reader.get_batch(0), columns, rows, metadata)
        source.seek(8)  # what comes before the footer is a stream
        [batch] = pa.ipc.open_stream(source)
        check_batch(batch, columns, rows, metadata)
    ours, content = read_batch(mapped(path)), path.read_bytes()
    assert (ours.num_rows, ours.metadata) == (rows, metadata)
    assert [content[start : start + size] for start, size in ours.buffers] == [
        part for column in columns.values() for part in (b"", *parts(column))
    ]
    assert all(start % 8 == 0 for start, _ in ours.buffers)


def check_batch(batch, columns, rows, metadata):
    """A record batch as pyarrow reads it is what was written, bit for bit."""
    batch.validate(full=True)
    assert batch.num_rows == rows
    assert (batch.schema.metadata or {}) == metadata
    assert batch.schema.names == list(columns)
    for read, written in zip(batch.columns, columns.values(), strict=True):
        assert read.type == arrow_type(written)
        assert read.null_count == 0
        validity, *found = read.buffers()
        assert validity is None
        assert [buffer.to_pybytes() for buffer in found] == parts(written)


def arrow_type(column):
    if isinstance(column, ByteStrings):
        return pa.large_binary() if column.offsets.dtype == np.int64 else pa.binary()
    return pa.from_numpy_dtype(column.dtype)


def parts(column):
    if isinstance(column, ByteStrings):
        return [column.offsets.tobytes(), column.text]
    return [column.tobytes()]


def test_other_files_are_refused(tmp_path):
    batch = pa.record_batch({"a": pa.array([1, 2])})
    write_arrow(tmp_path / "two", batch, batch)
    with pytest.raises(ValueError, match="not one record batch"):
        read_batch(mapped(tmp_path / "two"))
    write_arrow(tmp_path / "one", batch)
    content = (tmp_path / "one").read_bytes()
    for size in (1, 8, 20, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(ValueError, match="no Arrow file, or cut short"):
            read_batch(mapped(tmp_path / "cut"))


def test_no_damage_is_an_error_of_another_kind(tmp_path):
    batch = pa.record_batch({"a": pa.array([1, 2]), "key": pa.array([b"x", b"yz"])})
    write_arrow(tmp_path / "x", batch, metadata={"name": "value"})
    content = (tmp_path / "x").read_bytes()
    refused = 0
    for at in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[at] ^= flip
            (tmp_path / "damaged").write_bytes(damaged)
            try:
                read_batch(mapped(tmp_path / "damaged"))
            except ValueError:
                refused += 1
    assert refused > 300


def test_an_index_is_read_without_pyarrow(tmp_path):
    keys = [f"key {n}" for n in range(100)]
    write_index(tmp_path / "x", keys=keys, columns={"label": np.arange(100)}, class_names=["a"])
    code = (
        "import sys, numpy as np; from datasets.index import Index;"
        f"index = Index.open({str(tmp_path / 'x')!r}, verify=True);"
        "print(index.keys(np.array([99, 3])), index.column('label')[7], index.class_names);"
        "assert 'pyarrow' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['key 99', 'key 3'] 7 ('a',)\n"
    assert Index.open(tmp_path / "x").keys(np.array([99])) == ["key 99"]

"""An Arrow file of one record batch, found in memory and written without importing pyarrow.

Mapping columns takes a few numbers of the file's footer, and pyarrow takes 27 MB. The footer and
the messages are flatbuffers, as the specification says under "Arrow Columnar Format", "IPC File
Format"; the numbers of fields are those of its files ``File.fbs``, ``Schema.fbs`` and
``Message.fbs``.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from datasets.flatbuffer import FlatTable, Number, Structs, Table, flatbuffer, unpack

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")
_BLOCK = "<qi4xq"
_VERSION = Number("<h", 4)  # V5, since Arrow 1.0
_SCHEMA, _RECORD_BATCH = 1, 3  # kinds of messages
_INT, _FLOAT, _BINARY, _LARGE_BINARY = 2, 3, 4, 19  # kinds of types


@dataclass(frozen=True, slots=True)
class ArrowBatch:
    """The only record batch of an Arrow file.

    Attributes:
        num_rows: Its rows.
        buffers: Place and size of every buffer in the file, bytes, in the order of the columns;
            of a column of numbers validity and values, of one of texts validity, offsets, bytes.
        metadata: What was written with the schema.
    """

    num_rows: int
    buffers: tuple[tuple[int, int], ...]
    metadata: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ByteStrings:
    """A column of strings of bytes.

    Attributes:
        offsets: Where each begins and the last one ends, int32 or int64 [n + 1], from 0.
        text: All of them, one after the other.
    """

    offsets: NDArray[Any]
    text: bytes


def read_batch(memory: mmap.mmap) -> ArrowBatch:
    """Find the record batch of a mapped Arrow file.

    Raises:
        ValueError: It is no Arrow file, damaged, or of more than one record batch.
    """
    end = len(memory) - len(_MAGIC) - 4
    if not memory[: len(_MAGIC)] == memory[end + 4 :] == _MAGIC:
        raise ValueError("no Arrow file, or cut short")
    [footer_bytes] = unpack("<i", memory, end)
    footer = FlatTable.root(memory, end - footer_bytes)
    blocks = footer.structs(3, _BLOCK)
    if len(blocks) != 1:
        raise ValueError("not one record batch")
    [(start, head_bytes, _)] = blocks
    mark, _ = unpack(_PREFIX.format, memory, start)
    if mark != _CONTINUATION:
        raise ValueError("its record batch is damaged")
    batch = FlatTable.root(memory, start + 8).table(2)
    return ArrowBatch(
        num_rows=batch.number(0, "<q"),
        buffers=tuple(
            (start + head_bytes + offset, size) for offset, size in batch.structs(2, "<qq")
        ),
        metadata={pair.text(0): pair.text(1) for pair in footer.table(1).tables(2)},
    )


def write_batch(
    file: BinaryIO,
    columns: Mapping[str, NDArray[Any] | ByteStrings],
    *,
    num_rows: int,
    metadata: Mapping[bytes, bytes],
) -> None:
    """Write an Arrow file of one record batch, in which no value is missing.

    Args:
        file: Where it is written, from its beginning on.
        columns: By name integers or floats [n], or byte strings.
        num_rows: How many rows they have.
        metadata: What is written with the schema.
    """
    buffers = [buffer for column in columns.values() for buffer in _buffers(column)]
    places, body_bytes = list[tuple[int, int]](), 0
    for buffer in buffers:
        places.append((body_bytes, len(buffer)))
        body_bytes += len(buffer) + _padding(buffer)
    pairs = [Table(pair) for pair in metadata.items()]
    schema = Table([Number("<h", 0), [_field(*item) for item in columns.items()], pairs])
    nodes = [(num_rows, 0)] * len(columns)
    batch = Table([Number("<q", num_rows), Structs("<qq", nodes), Structs("<qq", places)])
    head, batch_head = _message(_SCHEMA, schema, 0), _message(_RECORD_BATCH, batch, body_bytes)
    head = _MAGIC + b"\0\0" + head
    file.write(head + batch_head)
    for buffer in buffers:
        file.write(buffer)
        file.write(bytes(_padding(buffer)))
    block = (len(head), len(batch_head), body_bytes)
    footer = flatbuffer(Table([_VERSION, schema, Structs(_BLOCK, []), Structs(_BLOCK, [block])]))
    file.write(_PREFIX.pack(_CONTINUATION, 0) + footer + struct.pack("<i", len(footer)) + _MAGIC)


def _buffers(column: NDArray[Any] | ByteStrings) -> list[bytes | memoryview]:
    """A column's bytes; the first, which values are missing, are none."""
    if isinstance(column, ByteStrings):
        return [b"", column.offsets.view(np.uint8).data, column.text]
    return [b"", column.view(np.uint8).data]


def _padding(buffer: bytes | memoryview) -> int:
    return -len(buffer) % 8


def _field(name: str, column: NDArray[Any] | ByteStrings) -> Table:
    """What a schema says of a column."""
    if isinstance(column, ByteStrings):
        kind = _LARGE_BINARY if column.offsets.itemsize == 8 else _BINARY
        details = Table([])
    elif column.dtype.kind == "f":
        kind, details = _FLOAT, Table([Number("<h", {2: 0, 4: 1, 8: 2}[column.itemsize])])
    else:
        signed = Number("<?", column.dtype.kind == "i")
        kind, details = _INT, Table([Number("<i", 8 * column.itemsize), signed])
    no_children = list[Table]()
    nullable = Number("<?", False)
    return Table([name.encode(), nullable, Number("<B", kind), details, None, no_children])


def _message(kind: int, header: Table, body_bytes: int) -> bytes:
    """What comes before a message's body."""
    content = flatbuffer(Table([_VERSION, Number("<B", kind), header, Number("<q", body_bytes)]))
    return _PREFIX.pack(_CONTINUATION, len(content)) + content

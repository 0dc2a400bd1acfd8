"""Chunks of HDF5 datasets as they were before their filters (HDF5 file format, section IV.A.2.l).

Everything is decoded here but LZF, which the library's own filter decodes in a file that exists in
memory alone: what a damaged file says of itself never reaches the library.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF = 1, 2, 3, 32000
KNOWN_FILTERS = frozenset((_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF))
# No filter makes more of its input than deflate, which reaches 1,032 times.
MOST_EXPANSION = 1032
_BLOCK_WORDS = 1 << 16


class DamagedChunk(Exception):
    """A chunk is not what was written; the message is the cause."""


def decode_chunk(
    stored: bytes, filters: Sequence[tuple[int, Sequence[int]]], mask: int, size_bytes: int
) -> bytes | NDArray[np.uint8]:
    """Undo the filters of a chunk.

    Args:
        stored: The chunk as it lies in the file.
        filters: Code and parameters of each, in the order in which they were applied.
        mask: Bit i: filter i was left out.
        size_bytes: What it must have in the end.

    Raises:
        DamagedChunk: It is damaged, as far as can be told.
    """
    data: Any = stored
    applied = [each for place, each in enumerate(filters) if not mask >> place & 1]
    # Behind deflate the checksums of others follow.
    room = size_bytes + 4 * len(applied)
    for code, values in reversed(applied):
        if code == _FLETCHER32:
            data = _without_checksum(data)
        elif code == _DEFLATE:
            data = _inflated(data, room)
        elif code == _LZF:
            data = _unpacked_lzf(bytes(data), size_bytes)
        else:
            assert code == _SHUFFLE, code
            data = _unshuffled(data, values[0] if values else 1)
    if len(data) != size_bytes:
        raise DamagedChunk(f"a chunk has {len(data):,} bytes and should have {size_bytes:,}")
    return data


def _inflated(data: Any, most_bytes: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, most_bytes)
    except zlib.error as error:
        raise DamagedChunk(f"a chunk cannot be decompressed ({error})") from error
    if not inflate.eof:
        raise DamagedChunk("a chunk ends too early, or is larger than it should be")
    return found


def _unshuffled(data: Any, item_bytes: int) -> NDArray[np.uint8]:
    """Bytes in order again: the first bytes of all items, then the second ones, ..."""
    flat = np.frombuffer(data, np.uint8)
    if item_bytes < 2:
        return flat
    items = len(flat) // item_bytes
    whole = np.empty(len(flat), np.uint8)
    whole[: items * item_bytes].reshape(items, item_bytes)[:] = (
        flat[: items * item_bytes].reshape(item_bytes, items).T
    )
    whole[items * item_bytes :] = flat[items * item_bytes :]
    return whole


def _without_checksum(data: Any) -> Any:
    content, stored = data[:-4], int.from_bytes(bytes(data[-4:]), "little")
    found = fletcher32(content)
    # Versions before 1.6.3 swapped the bytes of each half.
    old = (found & 0x00FF00FF) << 8 | (found >> 8 & 0x00FF00FF)
    if len(data) < 4 or stored not in (found, old):
        raise DamagedChunk("a chunk is not what was written (checksum)")
    return content


def fletcher32(data: Any) -> int:
    """Fletcher's checksum over big-endian words of 16 bits, as HDF5 writes it."""
    content = bytes(data)
    if len(content) % 2:
        content += b"\0"
    words = np.frombuffer(content, ">u2")
    weights = np.arange(_BLOCK_WORDS, 0, -1, dtype=np.uint64)
    first = second = 0
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS].astype(np.uint64)
        n = len(block)
        second += n * first + int((block * weights[-n:]).sum())
        first += int(block.sum())
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    """A sum in ones' complement of 16 bits, where only nothing is zero."""
    return total % 0xFFFF or (0xFFFF if total else 0)


# No fork while the library works: its lock would stay locked in the child.
_LZF_LOCK = threading.Lock()
_lzf_chunks: dict[int, Any] = {}
os.register_at_fork(
    before=_LZF_LOCK.acquire, after_in_parent=_LZF_LOCK.release, after_in_child=_LZF_LOCK.release
)


def _unpacked_lzf(data: bytes, size_bytes: int) -> NDArray[np.uint8]:
    with _LZF_LOCK:
        if size_bytes not in _lzf_chunks:
            _lzf_chunks[size_bytes] = _lzf_chunk(size_bytes)
        import h5py

        whole = np.empty(size_bytes, np.uint8)
        chunk = _lzf_chunks[size_bytes]
        try:
            chunk.write_direct_chunk((0,), data, 0)
            chunk.read(h5py.h5s.ALL, h5py.h5s.ALL, whole)
        except (OSError, RuntimeError, ValueError) as error:
            raise DamagedChunk("a chunk cannot be decompressed (LZF)") from error
    return whole


def _lzf_chunk(size_bytes: int) -> Any:
    """A dataset of one chunk in a file in memory."""
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fapl_core(1 << 16, False)
    file = h5py.h5f.create(b"penstock-lzf-%d" % size_bytes, h5py.h5f.ACC_TRUNC, fapl=access)
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((size_bytes,))
    creation.set_filter(h5py.h5z.FILTER_LZF)
    space = h5py.h5s.create_simple((size_bytes,))
    return h5py.h5d.create(file, b"chunk", h5py.h5t.NATIVE_UINT8, space, creation)

"""Records come back from bytes as they were."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.core.record_codec import (
    UncacheableError,
    pack_fields,
    pack_record,
    unpack_fields,
    unpack_record,
)

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
SCALARS = st.sampled_from([np.int64(-3), np.float32(0.5), np.bool_(True), np.str_("año")])
DTYPES = (
    arrays.integer_dtypes() | arrays.floating_dtypes() | arrays.boolean_dtypes()
    | arrays.complex_number_dtypes() | arrays.unicode_string_dtypes()
)  # fmt: skip
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
VALUES = st.recursive(
    PLAIN | SCALARS | ARRAYS | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def payload_of(key: str, fields: dict[str, Any]) -> np.ndarray:
    entry = pack_record(key, fields)
    content = b"".join(entry.parts)
    assert len(content) == entry.size_bytes
    # As in the stores, entries begin at a multiple of 16.
    memory = np.zeros(len(content) + 16, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + len(content)] = np.frombuffer(content, np.uint8)
    return memory[start : start + len(content)]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@settings(max_examples=150)
@given(key=st.text(), fields=st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_any_record_comes_back_value_by_value_and_type_by_type(key, fields):
    payload = payload_of(key, fields)
    back_key, back = unpack_record(payload)
    assert back_key == key
    assert same(back, fields)


def test_arrays_stay_writable_or_read_only_and_never_change_the_entry():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    fixed = pixels.copy()
    fixed.flags.writeable = False
    payload = payload_of("k", {"mask": pixels, "image": fixed})
    before = payload.copy()
    _, back = unpack_record(payload)
    back["mask"][:] = 9
    with pytest.raises(ValueError, match="read-only"):
        back["image"][:] = 9
    assert np.shares_memory(back["image"], payload), "a read-only array is a view"
    assert np.array_equal(payload, before)


@pytest.mark.parametrize(
    "value", [{1: 2}, object(), np.array([object()]), [b"x", {1, 2}], np.zeros(2, "i4,f4")]
)
def test_values_that_it_cannot_hold_are_refused(value):
    with pytest.raises(UncacheableError, match="'odd'"):
        pack_record("k", {"odd": value})


STORED = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | arrays.arrays(arrays.integer_dtypes() | arrays.floating_dtypes(), (2, 3))
    | st.lists(st.integers() | st.text(), max_size=3)
)  # fmt: skip


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(["image", "n", "ä", "boxes"]), STORED, max_size=3))
def test_the_fields_of_a_packed_file_come_back(fields):
    for value in fields.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    back = unpack_fields(np.frombuffer(pack_fields(fields, key="k"), np.uint8))
    assert same(back, fields)
    assert all(not isinstance(v, np.ndarray) or v.flags.writeable for v in back.values())


@pytest.mark.parametrize("dtype, shape", [("|O", [1]), ("f4,O", [1]), ("<i4", [-1])])
def test_bytes_are_never_taken_for_python_objects(dtype, shape):
    text = json.dumps({"key": "", "fields": {"x": ["array", 16, dtype, shape]}}).encode()
    with pytest.raises(ValueError, match="none that was packed"):
        unpack_fields(bytes(16) + text + struct.pack("<I", len(text)))

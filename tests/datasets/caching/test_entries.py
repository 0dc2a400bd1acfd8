"""Records come back from bytes as they were."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from datasets.caching.entries import UncacheableError, pack, unpack
from datasets.sample import Record

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


def payload_of(record: Record) -> np.ndarray:
    entry = pack(record)
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
    payload = payload_of(Record(3, key, fields))
    for is_private in (False, True):
        back = unpack(payload, 7, is_private=is_private)
        assert (back.index, back.key) == (7, key)
        assert same(back.fields, fields)


def test_arrays_may_be_written_to_if_they_could_be_before_and_never_change_the_entry():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    fixed = pixels.copy()
    fixed.flags.writeable = False
    payload = payload_of(Record(0, "k", {"mask": pixels, "image": fixed}))
    before = payload.copy()
    back = unpack(payload, 0, is_private=False).fields
    back["mask"][:] = 9
    with pytest.raises(ValueError, match="read-only"):
        back["image"][:] = 9
    assert np.shares_memory(back["image"], payload), "what cannot be written to is no copy"
    assert np.array_equal(payload, before)


@pytest.mark.parametrize(
    "value", [{1: 2}, object(), np.array([object()]), [b"x", {1, 2}], np.zeros(2, "i4,f4")]
)
def test_what_cannot_be_kept_is_said_and_not_guessed_at(value):
    with pytest.raises(UncacheableError, match="'odd'"):
        pack(Record(0, "k", {"odd": value}))

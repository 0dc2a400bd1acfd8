"""Whatever records have comes back from columns that a few of them have shown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.core.record_codec import record_checksum
from penstock.core.sample import Record
from penstock.datasets.columnar.record_columns import (
    REST,
    plan_columns,
    restore,
    restore_rest,
    split_fields,
)

TEXT = st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARRAYS = arrays.arrays(
    st.sampled_from(["u1", "<i8", ">f4", "<f2", "?", "<c8"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
NAMES = st.sampled_from(["image", "boxes", "Boxes", "a/b", "", "label_", "key", "index", REST])
FIELDS = st.dictionaries(NAMES, VALUES | ARRAYS | st.binary(max_size=5), max_size=5)


@settings(max_examples=150)
@given(st.lists(FIELDS, max_size=3), FIELDS)
def test_there_and_back(samples, fields):
    records = [Record(i, str(i), found) for i, found in enumerate([*samples, fields][:-1])]
    columns = plan_columns(records)
    kinds = {column.name: column.kind for column in columns}
    assert len({name.lower() for name in kinds}) == len(kinds)
    assert not {"key", "label", "index", REST} & set(kinds)
    values = split_fields(fields, columns, key="k")
    rest = values.pop(REST, None)
    found = {name: restore(value, kinds[name]) for name, value in values.items()}
    if rest is not None:
        found |= restore_rest(rest, None)
    assert record_checksum(found, key="") == record_checksum(fields, key="")


def test_a_column_is_as_narrow_as_the_samples():
    def column(*values):
        samples = [Record(0, "", {"x": value}) for value in values]
        [found] = plan_columns(samples)
        return found.kind, found.dtype, found.inner

    assert column(1, 2) == ("int", "", ())
    assert column(1, 2.5) == ("json", "", ())
    assert column("a", "ü") == ("text", "", ())
    assert column(np.float32(1)) == ("float", "", ())
    assert column(True) == ("bool", "", ())
    assert column(b"", bytearray(b"x")) == ("bytes", "", ())
    assert column(np.zeros((0, 4), "f4"), np.zeros((2, 4), ">f4")) == ("array", "<f4", (4,))
    assert column(np.zeros((2, 4)), np.zeros((2, 5))) == ("npy", "", ())
    assert column(np.zeros((2, 0))) == ("npy", "", ())
    assert column(np.zeros(2), [1]) == ("json", "", ())


def test_damage_is_one_line():
    for kind, value in (("npy", b"x"), ("json", "{"), ("json", "[" * 100_000)):
        with pytest.raises(ValueError, match=r"^is no"):
            restore(value, kind)
    for value in (b"", b"abc", b"\xff" * 50, json.dumps({"fields": 1}).encode()):
        with pytest.raises(ValueError, match="is damaged"):
            restore_rest(value, None)

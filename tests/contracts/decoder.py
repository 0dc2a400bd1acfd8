"""Contract of a decoder."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.core.contracts import Decoder
from penstock.core.sample import Record, RecordError
from tests.contracts.equality import assert_same, untouched_global_states


def check_decoder(
    decoder: Decoder, good: list[Record], damaged: list[Record], *, views: bool = False
) -> None:
    """Check that a decoder is pure and picklable, and refuses damaged records in one line.

    Args:
        decoder: The decoder.
        good: Records that it decodes.
        damaged: Records that it refuses.
        views: Arrays may be read-only views of the record.
    """
    before = copy.deepcopy(good)
    with untouched_global_states():
        samples = [decoder(record) for record in good]
    for record, was in zip(good, before, strict=True):
        assert_same(record.fields, was.fields, "the decoder changed its record")
    for record, sample in zip(good, samples, strict=True):
        assert (sample["index"], sample["key"]) == (record.index, record.key)
        for name, value in record.fields.items():
            if not isinstance(value, bytes):
                assert_same(sample[name], value)
        for value in sample.values():
            if isinstance(value, np.ndarray):
                assert views or (value.flags.writeable and value.flags.c_contiguous)
        if "image" in sample:
            assert sample["image"].dtype == np.uint8 and sample["image"].ndim == 3
    again = pickle.loads(pickle.dumps(decoder))
    assert_same([again(record) for record in good], samples)
    with ThreadPoolExecutor(4) as pool:
        assert_same(list(pool.map(decoder, good * 4)), samples * 4)
    for record in damaged:
        with pytest.raises(RecordError) as raised:
            decoder(record)
        assert str(raised.value) and "\n" not in str(raised.value), "expected one line"

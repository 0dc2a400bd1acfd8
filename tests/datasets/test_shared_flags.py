"""Flags that all processes of a loader see."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.shared_flags import SharedFlags


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_none_is_set_at_first_and_each_is_one_of_its_own(count):
    flags = SharedFlags(count)
    assert not any(flags[i] for i in range(count))
    flags.set(count - 1)
    assert [i for i in range(count) if flags[i]] == [count - 1]


@given(which=st.sets(st.integers(0, 99)))
def test_those_set_are_set_wherever_it_is_pickled_to(which):
    flags = SharedFlags(100)
    other = pickle.loads(pickle.dumps(flags))
    for i in which:
        (flags, other)[i % 2].set(i)
    assert {i for i in range(100) if flags[i]} == which
    assert [flags[i] for i in range(100)] == [other[i] for i in range(100)]


def test_numbers_may_be_of_numpy():
    flags = SharedFlags(300)
    flags.set(np.int64(299))
    assert flags[299]
    assert not flags[np.uint8(200)]


def test_where_the_maker_has_ended_none_is_set():
    code = (
        "import pickle, sys; from datasets.shared_flags import SharedFlags; f = SharedFlags(9);"
        "f.set(3); sys.stdout.buffer.write(pickle.dumps(f))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    flags = pickle.loads(answer.stdout)
    assert not flags[3]
    flags.set(8)
    assert flags[8]

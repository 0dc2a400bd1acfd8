"""The batch plan: exactly once, in order, whatever divides by what."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.loader.plan import BatchPlan

sizes = {
    "n": st.integers(0, 300),
    "per_group": st.integers(1, 25),
    "group": st.integers(1, 5),
    "world_size": st.sampled_from([1, 2, 3, 4, 8]),
    "tail": st.sampled_from(["drop", "pad", "keep"]),
}


def _plans(n, batch_size, world_size, tail, group=1):
    return [BatchPlan(n, batch_size, world_size, rank, tail, group) for rank in range(world_size)]


@given(**sizes)
def test_union_over_ranks_is_the_epoch_in_global_order(n, per_group, group, world_size, tail):
    batch_size = per_group * group
    if tail == "drop" and n < batch_size:
        with pytest.raises(ValueError, match="0 batches"):
            BatchPlan(n, batch_size, tail=tail, group=group)
        return
    plans = _plans(n, batch_size, world_size, tail, group)
    assert len({plan.num_batches for plan in plans}) == 1
    seen = []
    for number in range(plans[0].num_batches):
        parts = [plan.batch(number) for plan in plans]
        for positions, valid in parts:
            assert positions.dtype == np.int64 and valid.dtype == np.bool_
            assert positions.size == valid.size >= 1
            assert ((positions >= 0) & (positions < n)).all()
        seen.append(np.concatenate([positions[valid] for positions, valid in parts]))
    kept = n // batch_size * batch_size if tail == "drop" else n
    union = np.concatenate(seen) if seen else np.empty(0, np.int64)
    assert np.array_equal(union, np.arange(kept))


@given(**sizes)
def test_no_rank_cuts_a_group(n, per_group, group, world_size, tail):
    batch_size = per_group * group
    if tail == "drop" and n < batch_size:
        return
    for plan in _plans(n, batch_size, world_size, tail, group):
        for number in range(plan.num_batches):
            positions, valid = plan.batch(number)
            if valid.all() and positions[-1] + 1 < n:
                assert positions[0] % group == 0 and (positions[-1] + 1) % group == 0


@given(n=st.integers(1, 200), batch_size=st.integers(1, 40), world_size=st.integers(1, 8))
def test_slices_follow_the_formula(n, batch_size, world_size):
    for rank, plan in enumerate(_plans(n, batch_size, world_size, "keep")):
        for number in range(plan.num_batches):
            length = min(batch_size, n - number * batch_size)
            start = number * batch_size + rank * length // world_size
            stop = number * batch_size + (rank + 1) * length // world_size
            positions, valid = plan.batch(number)
            if start == stop:
                assert positions.size == 1 and not valid.any()
            else:
                assert np.array_equal(positions, np.arange(start, stop)) and valid.all()


@given(n=st.integers(1, 60), batch_size=st.integers(1, 70), world_size=st.sampled_from([1, 3, 8]))
def test_padding_repeats_from_the_start_and_is_invalid(n, batch_size, world_size):
    plans = _plans(n, batch_size, world_size, "pad")
    for number in range(plans[0].num_batches):
        parts = [plan.batch(number) for plan in plans]
        filled = [part for part in parts if part[1].any() or part[0].size > 1]
        q = np.arange(number * batch_size, (number + 1) * batch_size)
        if world_size <= batch_size:
            positions = np.concatenate([part[0] for part in parts])
            valid = np.concatenate([part[1] for part in parts])
            assert np.array_equal(positions, q % n)
            assert np.array_equal(valid, q < n)
        assert sum(int(part[1].sum()) for part in filled) == min(batch_size, n - q[0])


def _cost_of_the_last_batch(num_positions):
    """Lines of Python that run, and bytes held at most; neither knows how busy a machine is."""
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count

    tracemalloc.start()
    before = sys.gettrace()
    gc.disable()  # at a collection, hypothesis runs lines of its own
    sys.settrace(count)
    try:
        plan = BatchPlan(num_positions, 4096, 8, 3, "drop")
        positions, _ = plan.batch(plan.num_batches - 1)
    finally:
        sys.settrace(before)
        gc.enable()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert positions[0] == (plan.num_batches - 1) * 4096 + 3 * 512
    return lines, held


def test_a_trillion_positions_cost_what_a_single_batch_does():
    few_lines, few_bytes = _cost_of_the_last_batch(4096)
    lines, held = _cost_of_the_last_batch(10**12)
    assert lines == few_lines
    assert held < 2 * few_bytes, "the batch itself, and no list of batches"


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"5 samples are fewer than batch_size 8.*drop_last=false"):
        BatchPlan(5, 8)
    with pytest.raises(ValueError, match=r"groups of 4 .* such as 8"):
        BatchPlan(100, 10, group=4)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        BatchPlan(100, 10, 2, 2)
    with pytest.raises(IndexError):
        BatchPlan(100, 10).batch(10)


def test_no_data_makes_no_batches():
    assert BatchPlan(0, 8, tail="keep").num_batches == 0


def test_batches_of_any_size_keep_no_groups_together():
    with pytest.raises(ValueError, match=r"groups of 2 positions.*sampler=random"):
        BatchPlan(10, 4, group=2, cuts=lambda epoch: np.array([0, 3, 10]))

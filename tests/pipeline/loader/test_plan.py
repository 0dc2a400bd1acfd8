"""The batch plan: exactly once, in order, whatever divides by what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.loader.plan import BatchPlan, indexed_tasks
from penstock.pipeline.samplers.random import SequentialSampler
from tests.pipeline.loader.fakes import FakeDataset, make_loader

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


def test_padding_fills_the_last_batch():
    positions, valid = BatchPlan(10, 8, tail="pad").batch(1)
    assert positions.tolist() == [8, 9, 0, 1, 2, 3, 4, 5]
    assert valid.tolist() == [True] * 2 + [False] * 6


def test_each_epoch_has_its_own_cuts():
    plan = BatchPlan(10, 6, cuts=lambda epoch: np.array([0, 4 + epoch, 10]))
    assert [plan.batch(0, epoch)[0].size for epoch in (0, 1)] == [4, 5]


def test_tasks_of_one_call_of_a_sampler_and_the_next():
    quarantine: set[int] = set()
    more = {"epoch": 0, "start": 5, "quarantine": quarantine}
    tasks = indexed_tasks(BatchPlan(40_000, 4), SequentialSampler(40_000), 40_000, **more)
    assert next(tasks).number == 5
    quarantine.add(30)
    assert next(task for task in tasks if task.quarantined).quarantined == (30,)
    assert [task.number for task in tasks] == list(range(8, 10_000))


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"5 samples are fewer than batch_size 8.*drop_last=false"):
        BatchPlan(5, 8)
    with pytest.raises(ValueError, match=r"groups of 4 .* such as 8"):
        BatchPlan(100, 10, group=4)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        make_loader(FakeDataset(40), rank=2, world_size=2)


def test_no_data_makes_no_batches():
    assert BatchPlan(0, 8, tail="keep").num_batches == 0


def test_batches_of_any_size_keep_no_groups_together():
    with pytest.raises(ValueError, match=r"groups of 2 positions.*sampler=random"):
        BatchPlan(10, 4, group=2, cuts=lambda epoch: np.array([0, 3, 10]))

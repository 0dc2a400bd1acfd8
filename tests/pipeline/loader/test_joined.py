"""Tasks as one task, and a batch as several."""

from __future__ import annotations

import torch

from penstock.pipeline.loader.compute.bundles import can_join, joined, split_rows
from penstock.pipeline.loader.digest import batch_digest
from tests.pipeline.loader.bundled import Arrays, computer, task


def test_tasks_that_cannot_be_joined():
    plain = task(0, 1, 2)
    assert can_join(plain, task(1, 3))
    assert not can_join(plain, task(1, 3, epoch=1))
    assert not can_join(plain, task(1, 3, quarantined=(3,)))
    assert not can_join(task(0, 1, quarantined=(1,)), task(1, 3))
    assert not can_join(plain, task(1, 3, items=["raw"]))


def test_what_is_joined_holds_all_rows():
    whole = joined([task(4, 7, 8), task(5, 9), task(6, 300, 301)])
    assert (whole.number, whole.epoch) == (4, 0)
    assert whole.positions.tolist() == [7, 8, 9, 300, 301]
    assert whole.valid.tolist() == [True] * 4 + [False]
    assert whole.indices.tolist() == [7, 8, 9, 300, 0]


def test_deliveries_of_a_bundle_are_those_of_its_tasks(arrays_folder):
    compute = computer(Arrays(arrays_folder))
    tasks = [task(2, 5, 6), task(3, 300, 301, 7), task(4, 9)]
    together = compute.together(tasks)
    alone = [compute(each) for each in tasks]
    assert [d.number for d in together] == [2, 3, 4]
    for one, other in zip(together, alone, strict=True):
        assert batch_digest(one.batch) == batch_digest(other.batch)
        assert (one.positions, one.samples) == (other.positions, other.samples)
        assert one.faults == other.faults == ()
    assert together[0].times.read > 0
    assert together[1].times.read == together[2].times.read == 0, "counted once"
    together[0].batch["image"].fill(0)
    assert batch_digest(together[1].batch) == batch_digest(alone[1].batch)


def test_rows_are_cut_where_the_batches_end():
    batch = {"x": torch.arange(12).reshape(6, 2), "key": list("abcdef")}
    first, second, third = split_rows(batch, [1, 3, 2])
    assert first["x"].tolist() == [[0, 1]] and first["key"] == ["a"]
    assert second["x"].tolist() == [[2, 3], [4, 5], [6, 7]] and second["key"] == list("bcd")
    assert third["x"].tolist() == [[8, 9], [10, 11]] and third["key"] == ["e", "f"]
    assert split_rows(batch, [1, 3]) is None
    assert split_rows({**batch, "one": 3}, [6]) is None

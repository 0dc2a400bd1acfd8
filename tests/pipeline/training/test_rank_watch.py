"""Ranks that others wait for are named."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

import torch.distributed as dist

from penstock.pipeline.training.distributed.watch import RankWatch


def lines_of(caplog, seconds: float = 20.0) -> list[str]:
    """Return what was logged, once there is something."""
    deadline = time.monotonic() + seconds
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    return caplog.messages


def wait_for(store: dist.HashStore, counts: dict[int, int]) -> None:
    """Wait until ranks have published these counts."""
    deadline = time.monotonic() + 20
    for rank, count in counts.items():
        key = f"collectives/{rank}"
        while not (store.check([key]) and int(store.get(key)) == count):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_ranks_that_are_behind_are_named_once(caplog):
    store = dist.HashStore()
    with ExitStack() as stack:
        ranks = [
            RankWatch(store, rank, 4, patience_s=0.05 if rank == 2 else 60.0, every_s=0.01)
            for rank in range(4)
        ]
        for rank in ranks:
            stack.callback(rank.close)
        for rank in (0, 1, 2, 3):
            with ranks[rank].collective():
                pass
        wait_for(store, {rank: 1 for rank in range(4)})
        with ranks[0].collective():
            wait_for(store, {0: 2})
            with ranks[2].collective():
                [line] = lines_of(caplog)
    assert re.findall(r"rank ([\d, ]+)", line) == ["2 ", "1, 3"]
    assert len(caplog.messages) == 1


def test_a_rank_that_is_late_itself_names_nobody(caplog):
    store = dist.HashStore()
    watch = RankWatch(store, 0, 2, patience_s=0.0, every_s=0.01)
    store.set("collectives/1", "5")
    with watch.collective():
        while not store.check(["collectives/0"]):
            time.sleep(0.01)
    watch.close()
    assert not caplog.messages

"""One batch computed by several threads."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from pipeline.loader.contract import Delivery
from pipeline.loader.ring.sharing import Sharing
from pipeline.loader.ring.threads import ThreadCrew
from tests.contracts.equality import assert_same
from tests.pipeline.loader.test_compute import computer, dataset, task


def test_pieces_come_back_in_order_and_all_threads_work():
    sharing = Sharing()
    meeting = threading.Barrier(3, timeout=20)
    helpers = [threading.Thread(target=sharing.help) for _ in range(2)]
    for helper in helpers:
        helper.start()

    def compute(piece: int) -> tuple[int, int]:
        if piece < 3:
            meeting.wait()  # passed only if three threads are here
        return piece * piece, threading.get_ident()

    results = sharing.spread(compute, range(20))
    assert [square for square, _ in results] == [piece * piece for piece in range(20)]
    assert len({thread for _, thread in results[:3]}) == 3
    for helper in helpers:
        helper.join(20)
        assert not helper.is_alive()


def test_the_error_of_the_first_piece_is_raised():
    def compute(piece: int) -> None:
        if piece % 3 == 1:
            raise KeyError(piece)

    with pytest.raises(KeyError, match="1"):
        Sharing().spread(compute, range(9))


class Panic(BaseException):
    """As extensions raise it that are no `Exception`."""


def test_whatever_a_helper_raises_is_raised_where_the_batch_is_asked_for():
    sharing, met, raised = Sharing(), threading.Barrier(2, timeout=20), threading.Event()

    def compute(piece: int) -> None:
        met.wait()  # a piece for each thread
        if threading.current_thread() is helper:
            raise Panic(piece)

    def spread() -> None:
        with pytest.raises(Panic):
            sharing.spread(compute, range(2))
        raised.set()

    helper = threading.Thread(target=sharing.help)
    helper.start()
    threading.Thread(target=spread, daemon=True).start()
    assert raised.wait(20)
    helper.join(20)
    assert not helper.is_alive()


def test_what_was_spread_is_not_held():
    class Work:
        def __call__(self, piece: int) -> int:
            return piece

    work, sharing = Work(), Sharing()
    gone = weakref.ref(work)
    sharing.spread(work, [1, 2])
    del work
    gc.collect()
    assert gone() is None, "also where those that help still hold what is shared"


class FailsFirst:
    """Could spread its first batch and fails before; two threads meet at the others."""

    spreads = True

    def __init__(self) -> None:
        self.meeting = threading.Barrier(2)

    def __call__(self, asked, *, allocate, spread=None) -> Delivery:
        if spread is not None:
            raise OSError("before anything was spread")
        self.meeting.wait(20)
        return Delivery(asked.number, {})


def test_those_who_came_to_help_go_on_where_nothing_was_spread():
    crew = ThreadCrew(FailsFirst(), 2, depth=3, timeout_s=10)
    try:
        for ticket in range(3):
            crew.submit([ticket], [task(0)])
        with pytest.raises(OSError, match="before anything"):
            crew.take(0)
        crew.take(1), crew.take(2)
    finally:
        crew.close()


def test_helpers_go_where_nothing_is_spread():
    sharing = Sharing()
    helper = threading.Thread(target=sharing.help)
    helper.start()
    sharing.end()
    helper.join(20)
    assert not helper.is_alive()


@pytest.mark.parametrize("quarantined", [(), (3, 12)])
def test_a_shared_batch_is_the_batch(quarantined):
    compute = computer(dataset())
    assert compute.spreads
    asked = task(*[0, 1, 3, 4, 6, 7] * 5, quarantined=quarantined)
    alone = compute(asked)
    sharing = Sharing()
    helper = threading.Thread(target=sharing.help)
    helper.start()
    together = compute(asked, spread=sharing.spread)
    helper.join(20)
    assert_same(together.batch, alone.batch)
    assert together.faults == alone.faults
    assert together.times.decode > 0


def test_the_first_batch_of_a_crew_is_shared_and_again_after_a_break(monkeypatch):
    shared = []
    spread = Sharing.spread

    def counted(self, function, pieces):
        shared.append(len(pieces))
        return spread(self, function, pieces)

    monkeypatch.setattr(Sharing, "spread", counted)
    compute = computer(dataset())
    asked = task(*[0, 1, 3, 4, 6, 7] * 5)
    crew = ThreadCrew(compute, 3, depth=4, timeout_s=60)
    try:
        for ticket in range(4):
            crew.submit([ticket], [asked])
        first = [crew.take(ticket) for ticket in range(4)]
        assert shared == [4], "30 rows in pieces of 8, once"
        crew.drop()
        crew.submit([4], [asked])
        assert_same(crew.take(4).batch, first[0].batch)
        assert shared == [4, 4]
    finally:
        crew.close()
    expected = compute(asked).batch
    assert all(np.array_equal(one.batch["image"], expected["image"]) for one in first)

"""Waiting for one outcome among many."""

from __future__ import annotations

import threading

from pipeline.loader.ring.board import Board


def test_the_deadline_is_that_of_the_ticket_whatever_else_is_laid_down():
    board, given_up, most = Board(), threading.Event(), 300
    others = []

    def lay_down_others():
        while len(others) < most and not given_up.wait(0.02):
            others.append(len(others) + 1)
            board.put(others[-1], "another one's")

    thread = threading.Thread(target=lay_down_others)
    thread.start()
    assert board.take(0, 0.2) is None
    given_up.set()
    thread.join()
    assert len(others) < most, "not as long as there are others"

"""Waiting for what another thread or process does: how soon it does it, the machine decides."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref


def wait_until(done: Callable[[], object], failing: str = "", *, at_most_s: float = 120) -> None:
    """Wait until `done` is; `failing` says what is wrong if it never is."""
    until = time.monotonic() + at_most_s
    while not done():
        assert time.monotonic() < until, failing
        time.sleep(0.005)


def wait_until_let_go(references: Iterable[ref[Any]], *, at_most_s: float = 120) -> None:
    """Wait until nobody holds what is referred to: a thread may be about to let it go."""
    held = list(references)

    def is_let_go() -> bool:
        gc.collect()
        return all(each() is None for each in held)

    wait_until(is_let_go, "what nobody needs is kept", at_most_s=at_most_s)

"""Tasks of packing on the machines of a Ray cluster."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.core.ray_cluster import RayCalls
from penstock.core.user_errors import ExplainedError
from penstock.pipeline.packing.workers import Needs, Work, done


class RayLauncher:
    """Lets Ray do the tasks, each of which takes a core, wherever there is one.

    Args:
        needs: What the work needs there.

    Raises:
        ValueError: Ray is not installed.
    """

    def __init__(self, needs: Needs) -> None:
        self._calls = RayCalls(_do_one, partial(pickle.dumps, _Opened(needs)))
        self._asked: dict[Future[Any], Any] = {}

    def start(self) -> RayLauncher:
        """Nothing: a process of Ray's own does each task."""
        return self

    def submit(self, task: Any) -> Future[tuple[Any, Exception | None]]:
        """Ask for a task to be done."""
        answer = self._calls.begin(task)
        future: Future[tuple[Any, Exception | None]] = answer.future()
        self._asked[future] = answer
        future.add_done_callback(self._asked.pop)
        return future

    def ending(self, error: BaseException) -> str | None:
        """How the process of a task ended, alone or with its machine.

        Raises:
            ValueError: It could not begin, which another try would not change.
        """
        try:
            return self._calls.why_ended(error)
        except ExplainedError as explained:
            raise ValueError(f"pack: {explained}") from None

    def end(self) -> None:
        """Kill what is being done."""
        for answer in list(self._asked.values()):
            self._calls.end(answer)


class _Opened:
    """Unpickles as the work of `needs`."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs

    def __reduce__(self) -> tuple[Any, ...]:
        return Needs.loaded, (self._needs,)


def _do_one(work: Work, task: Any) -> tuple[Any, Exception | None]:
    return done(lambda: work, task)

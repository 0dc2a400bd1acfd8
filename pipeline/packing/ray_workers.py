"""Tasks of packing on the machines of a Ray cluster."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from penstock.core.ray_cluster import (
    SentFiles,
    Surroundings,
    connected,
    in_one_line,
    why_not_begun,
    why_not_opened,
)
from penstock.pipeline.packing.workers import Needs, Work, done


class RayLauncher:
    """Lets Ray do the tasks, each of which takes a core, wherever there is one.

    Args:
        needs: What the work needs there.

    Raises:
        ValueError: Ray is not installed.
    """

    def __init__(self, needs: Needs) -> None:
        self._ray = connected("pack.launcher=ray")
        files = SentFiles.of(needs.files, "pack.launcher=ray")
        self._needs = self._ray.put((needs, files))
        self._asked: dict[Future[Any], Any] = {}
        # What died is counted and begun again by who asked for it.
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_retries": 0}
        self._do = self._ray.remote(_do).options(**options)

    def start(self) -> RayLauncher:
        """Nothing: a process of Ray's own does each task."""
        return self

    def submit(self, task: Any) -> Future[tuple[Any, Exception | None]]:
        """Ask for a task to be done."""
        answer = self._do.remote(self._needs, Surroundings.here(), task)
        future: Future[tuple[Any, Exception | None]] = answer.future()
        self._asked[future] = answer
        future.add_done_callback(self._asked.pop)
        return future

    def ending(self, error: BaseException) -> str | None:
        """How the process of a task ended, alone or with its machine.

        Raises:
            ValueError: It could not begin, which another try would not change.
        """
        if not isinstance(error, self._ray.exceptions.RayError):
            return None
        if (why := why_not_begun(error)) is not None:
            raise ValueError(f"pack: {why}") from None
        return in_one_line(error)

    def end(self) -> None:
        """Kill what is being done."""
        for answer in list(self._asked.values()):
            with suppress(Exception):  # the cluster may be gone
                self._ray.cancel(answer, force=True)


def _do(
    sent: tuple[Needs, SentFiles], surroundings: Surroundings, task: Any
) -> tuple[Any, Exception | None]:
    """Do a task: its result, or what went wrong."""
    needs, files = sent
    surroundings.enter()
    return done(lambda: _opened(needs, files), task)


_opened_works: dict[bytes, Work] = {}


def _opened(needs: Needs, files: SentFiles) -> Work:
    if needs.work not in _opened_works:
        try:
            with files.received():
                _opened_works[needs.work] = needs.loaded()
        except Exception as error:
            raise ValueError(f"pack: {why_not_opened(error)}") from None
    return _opened_works[needs.work]

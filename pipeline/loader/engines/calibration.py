"""Autotune: try layouts of workers on batches that are delivered, and keep the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.pipeline.loader.engines.pool import Usage, WorkerLayout

_WINDOW_S = 0.25
_LEAST_DELIVERIES = 8
_ROUNDS = 2
_MOST_RUNS = 3
"""Iterations that end amid a contest; then what is known decides.

Short epochs of validation would go on with it for hours, and keep the processes that are tried.
"""
_AS_GOOD = 0.95
"""Layouts above this share of the fastest are equal; the one named first takes the least."""

_CHEAP_S = 0.001
_CHEAP_WALL_S = 0.010
_SHORT_S = 0.005
_STEP_SHARE = 0.05
_AT_WORK = 0.1
_SCALES = 0.95
_THREADS_A_PROCESS = 4
"""Beyond so many, the interpreter of a process is what its threads wait for."""


@dataclass(frozen=True, slots=True)
class Look:
    """Figures of the first batches, which threads of this process computed.

    Attributes:
        step_share: Share of the time that the consumer spent on its own work.
        at_work: Seconds of processor time that threads took per second.
        batch_cpu_s: Processor time of a batch.
        batch_wall_s: Time of a batch.
    """

    step_share: float
    at_work: float
    batch_cpu_s: float
    batch_wall_s: float

    @property
    def efficiency(self) -> float:
        """Share of the threads' time in which they computed and did not wait."""
        return self.batch_cpu_s / self.batch_wall_s if self.batch_wall_s else 1.0


def contenders(look: Look, workers: int) -> tuple[list[WorkerLayout], str]:
    """Choose what to try beside threads of this process, and say why, or why nothing.

    Threads share the interpreter with the consumer's step and with each other. Where there is
    such a step while they work, or where they wait for each other, processes may be faster:
    few, of several threads each, and where threads hold each other up one for each worker.
    Batches that take less than their handing over are best computed by the consumer, and short
    ones may be where threads hold each other up.
    """
    if look.batch_cpu_s < _CHEAP_S and look.batch_wall_s < _CHEAP_WALL_S:
        return [WorkerLayout()], "a batch takes less than a millisecond"
    few = WorkerLayout.spread(workers, -(-workers // _THREADS_A_PROCESS))
    each = WorkerLayout.spread(workers, workers)
    scales = look.efficiency >= _SCALES or workers == 1
    if look.step_share < _STEP_SHARE and scales:
        return [], f"nothing else runs, and they compute {look.efficiency:.0%} of their time"
    if look.at_work < _AT_WORK:
        return [], f"they are at work {look.at_work:.0%} of the time of a core"
    if scales:
        return [few], "a step runs beside them"
    why = f"threads compute {look.efficiency:.0%} of their time"
    here = [WorkerLayout()] if look.batch_cpu_s < _SHORT_S else []
    return [*here, few] if few == each else [*here, few, each], why


@dataclass(slots=True)
class _Window:
    """Deliveries in a row, and their time from end to end."""

    deliveries: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    step_s: float = 0.0
    usage: Usage = field(default_factory=Usage)


class Calibration:
    """Tries layouts in turn, some deliveries each, and keeps the fastest.

    What counts is the consumer's loop as a whole: samples per second, its own work included.
    Each layout is measured twice, so that what else the machine does at one moment does not
    decide.

    Args:
        first: The layout that computes from the first batch on.
        find: What else to try, by the look at the first batches, and why.
        depth: Batches that are computed ahead: so many are not counted after a change.
        window_s: Seconds of a measurement, at least.
        least: Deliveries of a measurement, at least.
        most_runs: Iterations that may end before it is settled.
        clock: Seconds that never go back.

    Attributes:
        layout: The one that is to compute now.
        is_over: Whether that is settled.
        reason: Why it is, in words.
    """

    def __init__(
        self,
        first: WorkerLayout,
        find: Callable[[Look], tuple[list[WorkerLayout], str]],
        *,
        depth: int,
        window_s: float = _WINDOW_S,
        least: int = _LEAST_DELIVERIES,
        most_runs: int = _MOST_RUNS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.layout = first
        self.is_over = False
        self.reason = "the first batches are being looked at"
        self._find = find
        self._found = False
        self._depth = depth
        self._window_s = window_s
        self._least = least
        self._runs_left = most_runs
        self._clock = clock
        self._rates: dict[WorkerLayout, list[float]] = {first: []}
        self._notes: list[str] = []
        self._window = _Window()
        self._used = Usage()
        self.begin()

    def begin(self) -> None:
        """Deliveries begin, or begin anew after a pause: the first ones are not counted."""
        self._to_skip = self._depth
        self._last_s: float | None = None

    def delivered(self, layout: WorkerLayout, samples: int, usage: Usage) -> None:
        """A batch is handed over.

        Args:
            layout: Who computed it.
            samples: Its positions.
            usage: What `layout` has spent on computing, since it was started.
        """
        if layout != self.layout:
            self._last_s = None
            return
        now = self._clock()
        if self._to_skip or self._last_s is None:
            self._to_skip = max(0, self._to_skip - 1)
        else:
            window = self._window
            window.deliveries += 1
            window.samples += samples
            window.elapsed_s += now - self._last_s
            window.usage += usage - self._used
        self._last_s, self._used = now, usage
        if self._window.elapsed_s >= self._window_s and self._window.deliveries >= self._least:
            self._close_window()

    def asked(self) -> None:
        """The consumer is done with the batch it was handed, and asks for the next one."""
        if self._last_s is not None and not self._to_skip:
            self._window.step_s += self._clock() - self._last_s

    def ended(self) -> None:
        """An iteration ended; several that end amid the contest end it."""
        if not self._found or self.is_over:
            return
        self._runs_left -= 1
        if self._runs_left <= 0:
            self._notes.append("its epochs are too short to try more")
            self._end()

    def failed(self, reason: str) -> None:
        """The layout at hand cannot be had."""
        self._notes.append(f"{self.layout} cannot be had: {reason}")
        at = list(self._rates).index(self.layout)
        del self._rates[self.layout]
        self._turn_to(at)

    def _close_window(self) -> None:
        window = self._window
        # Without a clock that moves (in tests) all are equal.
        self._rates[self.layout].append(window.samples / (window.elapsed_s or 1.0))
        if not self._found:
            self._found = True
            found, self.reason = self._find(_look_at(window))
            self._rates |= {layout: [] for layout in found}
        self._turn_to(list(self._rates).index(self.layout) + 1)

    def _turn_to(self, number: int) -> None:
        """Go on with a layout of the contest, with the next round, or end it."""
        contest = list(self._rates)
        if number == len(contest):
            number = 0
            rounds = min(map(len, self._rates.values()))
            if len(contest) == 1 or rounds >= _ROUNDS:
                self._end()
                return
        self._window = _Window()
        self.layout = contest[number]
        self.begin()

    def _end(self) -> None:
        self.is_over = True
        best = {layout: max(rates) for layout, rates in self._rates.items() if rates}
        enough = _AS_GOOD * max(best.values())
        self.layout = next(layout for layout, rate in best.items() if rate >= enough)
        rate = best.pop(self.layout)
        if best:
            tried = ", ".join(f"{layout} {rate:,.0f}" for layout, rate in best.items())
            self._notes.append(f"{rate:,.0f} samples/s; tried: {tried}")
        self.reason = "; ".join([self.reason, *self._notes])


def settled(layout: WorkerLayout, reason: str = "") -> Calibration:
    """A calibration that is over: there is nothing to choose."""
    calibration = Calibration(layout, lambda look: ([], ""), depth=0)
    calibration.is_over, calibration.reason = True, reason
    return calibration


def _look_at(window: _Window) -> Look:
    batches = window.usage.batches or 1
    elapsed_s = window.elapsed_s or 1.0
    return Look(
        step_share=window.step_s / elapsed_s,
        at_work=window.usage.cpu_s / elapsed_s,
        batch_cpu_s=window.usage.cpu_s / batches,
        batch_wall_s=window.usage.wall_s / batches,
    )

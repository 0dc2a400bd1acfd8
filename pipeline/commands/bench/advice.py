"""Settings tried beside the present ones, and the gain that each gave."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.commands.bench.candidates import Candidate
from pipeline.commands.bench.packing import Among, eager_config, packed_config
from pipeline.commands.bench.screen import doing, heading, say
from pipeline.commands.bench.subject import Subject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipeline.commands.bench import BenchSettings
    from pipeline.config.points import Points

_HELPS = 1.03
_GIVEN_UP = 0.95
"""A first round below this ratio is the last one, later ones below 1: time for what may help."""
_SHOWN = 3


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings about settings that are only tried from the user."""
    logger = logging.getLogger("pipeline")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@dataclass(frozen=True, slots=True)
class Trial:
    """What trying a candidate gave.

    Attributes:
        candidate: What was tried.
        ratios: Its rate by the present one's, of each round.
        failed: Why it could not be tried, or "".
    """

    candidate: Candidate
    ratios: tuple[float, ...] = ()
    failed: str = ""

    @property
    def gain(self) -> float:
        """The median of the ratios; 0 if it could not be tried."""
        return median(self.ratios) if self.ratios else 0.0

    @property
    def helps(self) -> bool:
        """Whether it was faster in every round, and by more than noise in most."""
        return self.gain >= _HELPS and min(self.ratios) > 1

    @property
    def text(self) -> str:
        """The gain with its range, and what was done."""
        low, high = min(self.ratios), max(self.ratios)
        return f"{self.gain:.2f}x ({low:.2f} to {high:.2f})  {self.candidate.typed}"


class Bench:
    """Tries candidates beside a configuration, each in alternating rounds.

    Args:
        points: Composes what a user would type.
        present: The configuration as it is, open.
        settings: How long to measure.
        rows: int64 [n], the records that are packed where that is tried.
        measure: What counts: the loader alone, or training with it.
    """

    def __init__(
        self,
        points: Points,
        present: Subject,
        settings: BenchSettings,
        *,
        rows: NDArray[Any] | None,
        measure: Literal["loader_round", "training_round"],
    ) -> None:
        self._points = points
        self._present = present
        self._settings = settings
        self._rows = rows
        self._measure = measure
        self._among: Subject | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def attempt(self, candidate: Candidate) -> Trial:
        """Open it, measure both in turn, close it; a temporary folder is removed again."""
        with ExitStack() as stack:
            stack.enter_context(_quiet())
            try:
                present, other = self._open(candidate, stack)
                return Trial(candidate, self._ratios(present, other))
            except (ValueError, OSError, RuntimeError) as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                return Trial(candidate, failed=reason[-1].strip())

    def _open(self, candidate: Candidate, stack: ExitStack) -> tuple[Subject, Subject]:
        config, split = self._present.config, self._settings.split
        if candidate.how == "typed":
            config = self._points.config_with(*candidate.overrides)
            return self._present, stack.enter_context(Subject(config, split))
        if candidate.how == "eager":
            return self._present, stack.enter_context(Subject(eager_config(config), split))
        assert self._rows is not None
        length = max(len(self._present.loader.dataset), len(self._rows))
        sampler = Among(self._rows, length=length)
        if self._among is None:
            self._among = self._stack.enter_context(Subject(config, split, sampler=sampler))
        if candidate.how == "cached":
            cached = self._points.config_with(*candidate.overrides)
            return self._among, stack.enter_context(Subject(cached, split, sampler=sampler))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        tiled = candidate.how == "tiled"
        packed = packed_config(config, split, self._rows, folder / "packed", tiled=tiled)
        packed_rows = Among(np.arange(len(self._rows)), length=length)
        return self._among, stack.enter_context(Subject(packed, split, sampler=packed_rows))

    def _ratios(self, present: Subject, other: Subject) -> tuple[float, ...]:
        seconds = self._settings.try_seconds / self._settings.rounds
        ratios: list[float] = []
        for number in range(self._settings.rounds):
            order = (present, other) if number % 2 == 0 else (other, present)
            rates = {id(each): getattr(each, self._measure)(seconds).rate for each in order}
            ratios.append(rates[id(other)] / max(rates[id(present)], 1e-9))
            if median(ratios) < (_GIVEN_UP if number == 0 else 1):
                break
        return tuple(ratios)


def advise(bench: Bench, tried: Sequence[Candidate], counted: str, budget_s: float) -> None:
    """Try candidates and print those that help most; also after Ctrl-C, those tried so far.

    Args:
        bench: Tries them.
        tried: What to try.
        counted: What the gains are of, as the user is told.
        budget_s: Seconds after which nothing more is begun.
    """
    trials: list[Trial] = []
    deadline = time.monotonic() + budget_s
    try:
        for number, candidate in enumerate(tried, start=1):
            if time.monotonic() > deadline:
                trials.append(Trial(candidate, failed="no time left; raise bench.try_seconds"))
                continue
            doing(f"trying {number} of {len(tried)}: {candidate.typed}")
            trials.append(bench.attempt(candidate))
    finally:
        if trials:
            print_advice(trials, counted)


def print_advice(trials: Sequence[Trial], counted: str) -> None:
    """Print what helps, what helps at a price, and what does not."""
    best = sorted((t for t in trials if t.helps), key=lambda t: -t.gain)
    plain = [trial for trial in best if not trial.candidate.changes]
    heading(f"settings that would help, by {counted} (median and range of the gain):")
    for trial in plain[:_SHOWN]:
        say("", trial.text)
    if not plain:
        say("", "nothing found that helps")
    for trial in [t for t in best if t.candidate.changes][:_SHOWN]:
        say(f"  but {'':<9}", f"{trial.text}: {trial.candidate.changes}")
    others = [trial for trial in trials if trial.ratios and not trial.helps]
    for trial in others:
        if trial.gain >= _HELPS:
            say("uncertain", trial.text)
    without = [f"{t.candidate.typed} ({t.gain:.2f}x)" for t in others if t.gain < _HELPS]
    if without:
        say("no gain", ", ".join(without))
    for trial in trials:
        if trial.failed:
            say("not tried", f"{trial.candidate.typed}: {trial.failed}")

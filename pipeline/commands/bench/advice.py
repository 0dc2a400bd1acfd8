"""Try settings that may help beside the present ones, and tell the gain that each gave."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Sampler
from penstock.core.files import own_folder
from penstock.core.processes import usable_cores
from penstock.pipeline.commands.bench.decoding import Decoding
from penstock.pipeline.commands.bench.report import FAILURES, doing, heading, last_line, say
from penstock.pipeline.commands.bench.subject import Round, Subject, alternate

if TYPE_CHECKING:
    from penstock.pipeline.commands.bench import BenchSettings
    from penstock.pipeline.commands.bench.points import Points

PIXELS = "changes the pixels, which are encoded anew at quality 95"
ROUNDING = "changes the rounding of the weights"
_MUCH_READING = 0.15
"""Share of a sample's time from which on holding what was read is tried."""
_HELPS = 1.03
_GIVEN_UP = 0.95
"""A first round below this ratio is the last one, later ones below 1: time for what may help."""
_SHOWN = 3
_NO_ROOM = "the cluster has no room for so many; `ray start --address=HOST:6379` adds a machine"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of settings.

    Attributes:
        typed: What the user would type.
        overrides: The same as overrides; empty where `how` says what is done.
        how: ``typed``: the overrides are composed; ``lmdb`` and ``tiled``: some records are
            packed, and compared with the same records as they lie; ``eager``: decoded samples
            are held in memory; ``cached``: the overrides are composed, for some records.
        changes: What it changes beside the speed, or "".
        lacks: What there has to be before it can be tried, or "".
    """

    typed: str
    overrides: tuple[str, ...] = ()
    how: Literal["typed", "lmdb", "tiled", "eager", "cached"] = "typed"
    changes: str = ""
    lacks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of a configuration that decide what may help it.

    Attributes:
        limit: What training waits for.
        workers: How many workers there are.
        decoding: The way of decoding; None where there is no storage.
        engines: The engines there are.
        holds: Whether all decoded samples fit into memory and take no time to speak of.
        cuda: Whether the device is CUDA.
        reading: Share of a sample's time in the loader that is reading, 0 to 1.
        actors: Actors that a cluster of Ray has room for, of as many threads as there are in each.
        no_cluster: What to do to have a cluster, or "".
    """

    limit: Literal["loader", "model"]
    workers: int
    decoding: Decoding | None
    engines: tuple[str, ...]
    holds: bool
    cuda: bool
    reading: float = 0.0
    actors: int = 0
    no_cluster: str = ""


def candidates(config: dict[str, Any], facts: Facts) -> Iterator[Candidate]:
    """List what is worth trying, the most likely first."""
    if facts.limit == "model":
        yield from _of_model(config)
        yield from _of_workers(config, facts)
        return
    yield from _of_data(config, facts)
    yield from _of_workers(config, facts)
    loader = config["loader"]
    if facts.workers:
        more = 2 * loader.get("prefetch_factor", 2)
        yield _typed(f"loader.prefetch_factor={more}")
    if facts.cuda and loader.get("pin_memory", "auto") is False:
        yield _typed("loader.pin_memory=true")


def _typed(*overrides: str, changes: str = "", lacks: str = "") -> Candidate:
    return Candidate(" ".join(overrides), overrides, changes=changes, lacks=lacks)


def _of_model(config: dict[str, Any]) -> Iterator[Candidate]:
    trainer = config["trainer"]
    if not trainer.get("channels_last", False):
        yield _typed("trainer.channels_last=true", changes=ROUNDING)
    if trainer.get("amp", "off") == "off":
        yield _typed("trainer.amp=bf16", changes=ROUNDING)


def _of_data(config: dict[str, Any], facts: Facts) -> Iterator[Candidate]:
    decoding, dataset = facts.decoding, config["dataset"]
    if decoding is None or dataset["_target_"] != "dataset/map":
        return
    if decoding.by_choice:
        yield _typed("dataset.decode.region=exact")
    in_lmdb = dataset["storage"]["_target_"] == "storage/lmdb"
    if not in_lmdb:
        yield Candidate("pack, then dataset=lmdb", how="lmdb")
    if decoding.crops_first and decoding.parts is not None and decoding.tiled < 0.5:
        yield Candidate("pack.tiled=true, then dataset=lmdb", how="tiled", changes=PIXELS)
    if facts.reading >= _MUCH_READING and dataset.get("cache") is None:
        yield Candidate("dataset/cache=ram", ("dataset/cache=ram",), how="cached")
    if facts.holds:
        typed = "dataset=eager dataset/storage=lmdb" if in_lmdb else "dataset=eager"
        yield Candidate(typed, how="eager")


def _of_workers(config: dict[str, Any], facts: Facts) -> Iterator[Candidate]:
    loader, cores = config["loader"], usable_cores()
    workers, engine = facts.workers, loader["engine"]
    if engine == "inline":
        yield _typed("loader=threads", f"loader.num_workers={cores}")
        return
    of_one_kind = ("multiprocessing_context", "resources")
    unset = [f"loader.{name}=null" for name in of_one_kind if loader.get(name) is not None]
    if engine == "ray":
        yield from _of_actors(loader, facts)
    if workers and (engine != "ray" or workers <= cores):  # a cluster's number may not fit here
        for other in facts.engines:
            if other not in (engine, "inline", "ray"):
                yield _typed(f"loader.engine={other}", *unset)
    if engine == "ray":
        return
    if facts.limit == "loader" and workers >= cores and facts.reading < _MUCH_READING:
        number = max(workers, facts.actors)
        lacks = facts.no_cluster
        yield _typed("loader.engine=ray", f"loader.num_workers={number}", *unset, lacks=lacks)
    counts = {max(2 * workers, 1), workers // 2 if workers > 1 else 0}
    if workers < cores:
        counts.add(cores)
    for number in sorted(counts - {workers}, reverse=True):
        if number <= 2 * cores:
            yield _typed(f"loader.num_workers={number}")


def _of_actors(loader: dict[str, Any], facts: Facts) -> Iterator[Candidate]:
    """More and fewer actors, up to those that the cluster has room for."""
    actors = facts.workers
    for number in sorted({facts.actors, 2 * actors, actors // 2} - {0, actors}, reverse=True):
        typed = f"loader.num_workers={number}"
        if number <= facts.actors:
            yield _typed(typed)
        elif number > actors:
            yield _typed(typed, lacks=_NO_ROOM)


def packed_config(
    config: dict[str, Any], split: Any, rows: NDArray[np.int64], folder: Path, *, tiled: bool
) -> dict[str, Any]:
    """Pack records as LMDB, and give the config that reads them.

    Args:
        config: The plain config.
        split: The split that they are of.
        rows: int64 [n], the records.
        folder: Does not exist; is made.
        tiled: Encode the images anew as tiled JPEG.
    """
    from penstock.datasets.records.views import Subset
    from penstock.datasets.storages.lmdb import LmdbWriter
    from penstock.datasets.writing import write_storage
    from penstock.pipeline.build import open_storage
    from penstock.pipeline.commands.pack import PackSettings, make_recode

    storage: Any = Subset(open_storage(config, split), rows)
    settings = PackSettings(path=str(folder), tiled=tiled)
    recode = make_recode(config, settings) if tiled else None
    target = folder / split
    write_storage(LmdbWriter(), target, storage, recode=recode)
    read = {"_target_": "storage/lmdb", "path": str(target)}
    return {**config, "dataset": {**config["dataset"], "storage": read, "val_fraction": 0.0}}


class Among(Sampler):
    """A sampler that draws from a few records only, for as many positions as there are.

    Args:
        rows: int64 [k], the records.
        length: Positions of an epoch; with `cutting` some more, so that its last batch is whole.
        seed: Of the order.
        cutting: The configured sampler of as many records, where it cuts batches itself: these
            are of other sizes than the loader's, and hold other records together.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        *,
        length: int,
        seed: int = 0,
        cutting: Sampler | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._cuts: NDArray[np.int64] | None = None
        if cutting is None:
            rounds = [rng.permutation(rows) for _ in range(-(-length // len(rows)))]
            self._order = np.concatenate(rounds)[:length]
            return
        epochs, size = range(-(-length // len(cutting))), len(cutting)
        self._order = np.concatenate([rows[cutting.indices(epoch, 0, size)] for epoch in epochs])
        cuts: list[Any] = [cutting.cuts(epoch) for epoch in epochs]
        each = [bounds[:-1] + epoch * size for epoch, bounds in zip(epochs, cuts, strict=True)]
        self._cuts = np.concatenate([*each, [len(self._order)]])

    def cuts(self, epoch: int) -> NDArray[np.int64] | None:
        """Return the bounds of the batches, if the configured sampler cuts them."""
        return self._cuts

    def __len__(self) -> int:
        return len(self._order)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Records at positions `start` to `stop`, int64."""
        return self._order[start:stop]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings about settings that are only tried from the user."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of trying a candidate.

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


@dataclass(slots=True)
class Bench:
    """Tries candidates beside a configuration, each in alternating rounds.

    Attributes:
        points: Composes what a user would type.
        present: The configuration as it is, open.
        settings: How long to measure.
        rows: int64 [n], the records that are packed where that is tried.
        measure: What counts, for so many seconds: the loader alone, or training with it.
    """

    points: Points
    present: Subject
    settings: BenchSettings
    rows: NDArray[Any] | None
    measure: Callable[[Subject, float], Round]
    _among: Subject | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def attempt(self, candidate: Candidate) -> Trial:
        """Open it, measure both in turn, close it; a temporary folder is removed again."""
        if candidate.lacks:
            return Trial(candidate, failed=candidate.lacks)
        with ExitStack() as stack:
            stack.enter_context(_quiet())
            try:
                present, other = self._open(candidate, stack)
                return Trial(candidate, self._ratios(present, other))
            except FAILURES as error:
                return Trial(candidate, failed=last_line(error))

    def _open(self, candidate: Candidate, stack: ExitStack) -> tuple[Subject, Subject]:
        config, split = self.present.config, self.settings.split
        if candidate.how == "typed":
            config = self.points.config_with(*candidate.overrides)
            return self.present, stack.enter_context(Subject(config, split))
        if candidate.how == "eager":
            held = {"_target_": "dataset/eager", "cache": None}
            config = {**config, "dataset": {**config["dataset"], **held}}
            return self.present, stack.enter_context(Subject(config, split))
        assert self.rows is not None
        length = max(len(self.present.loader.dataset), len(self.rows))
        among = partial(Among, length=length, cutting=self._cutting())
        sampler = among(self.rows)
        if self._among is None:
            self._among = self._stack.enter_context(Subject(config, split, sampler=sampler))
        if candidate.how == "cached":
            cached = self.points.config_with(*candidate.overrides)
            return self._among, stack.enter_context(Subject(cached, split, sampler=sampler))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=own_folder())))
        tiled = candidate.how == "tiled"
        packed = packed_config(config, split, self.rows, folder / "packed", tiled=tiled)
        packed_rows = among(np.arange(len(self.rows)))
        return self._among, stack.enter_context(Subject(packed, split, sampler=packed_rows))

    def _cutting(self) -> Sampler | None:
        """Make the sampler of the records that are tried, if it cuts batches itself."""
        from penstock.datasets.records.views import Subset
        from penstock.pipeline.build import build_sampler

        loader = self.present.loader
        assert self.rows is not None and loader.plan is not None
        if loader.plan.cuts is None:
            return None
        cutting: Sampler = build_sampler(
            self.present.config, Subset(loader.dataset.storage, self.rows)
        )
        return cutting

    def _ratios(self, present: Subject, other: Subject) -> tuple[float, ...]:
        both = [partial(self.measure, present), partial(self.measure, other)]
        ratios: list[float] = []
        for before, after in alternate(
            both, seconds=self.settings.try_seconds, rounds=self.settings.rounds
        ):
            if len(before) == len(after):
                ratios.append(after[-1].rate / max(before[-1].rate, 1e-9))
                if median(ratios) < (_GIVEN_UP if len(ratios) == 1 else 1):
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
            if time.monotonic() > deadline and not candidate.lacks:
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

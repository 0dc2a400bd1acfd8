"""Measure one configuration: loader, floor, model and training, and what would help."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.contracts import StreamDataset
from penstock.core.processes import usable_cores
from penstock.core.ray_cluster import connected
from penstock.core.registry import components
from penstock.datasets.map_dataset import MapDataset
from penstock.pipeline.build import build_settings, build_transform
from penstock.pipeline.commands.bench.advice import Bench, Facts, advise, candidates
from penstock.pipeline.commands.bench.decoding import (
    Decoding,
    Floor,
    floor_of,
    look_at,
    some_records,
)
from penstock.pipeline.commands.bench.report import (
    FAILURES,
    clear,
    doing,
    heading,
    last_line,
    megabytes,
    rate_of,
    say,
    spread_of,
    times_of,
    write,
)
from penstock.pipeline.commands.bench.subject import Round, Subject, alternate, write_trace
from penstock.pipeline.instantiate import build
from penstock.pipeline.loader.stats import sources_text

if TYPE_CHECKING:
    from penstock.pipeline.commands.bench import BenchSettings
    from penstock.pipeline.commands.bench.points import Points
    from penstock.pipeline.loader.settings import LoaderSettings

_HELD_S = 3.0
"""Decoding everything may take so long where holding it in memory is tried."""
_TRIED = 8
_RECORDS = 256
_START_S = 2.0
_SHARED = 0.85
_NO_CLUSTER = (
    "Ray adds the cores of other machines: pip install 'penstock[ray]' on all, `ray start --head` "
    "here, `ray start --address=HOST:6379` there, export RAY_ADDRESS=auto (docs/recipes.md)"
)


@dataclass(slots=True)
class Figures:
    """The rounds of each measurement, as far as they have come.

    Attributes:
        rounds: By ``loader``, ``floor``, ``model`` and ``training``.
        floor: What the floor is; None without one.
        made_up: Whether the model was given made-up labels.
    """

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    floor: Floor | None = None
    made_up: bool = False

    def rate(self, name: str) -> float | None:
        """Samples a second; None for what was not measured."""
        rounds = self.rounds.get(name)
        return rate_of(rounds) if rounds else None


def measure_one(points: Points) -> int:
    """Measure the one point, print what was found and what would help."""
    config = points.points[0].config
    settings: BenchSettings = build_settings(config["bench"])
    with ExitStack() as stack:
        stack.callback(clear)
        doing("starting the loader")
        subject = stack.enter_context(Subject(config, settings.split))
        budget_s = _budget_s(subject, settings)
        tries = f", and up to {budget_s:.0f} s for settings that may help" if budget_s else ""
        say(
            "bench", f"about {4 * settings.seconds:.0f} s{tries}; Ctrl-C ends it with what is known"
        )
        print_loader(subject)
        rows, decoding, figures = _look(config, subject, settings)
        try:
            _measure(subject, figures, settings)
        finally:
            print_figures(subject, figures)
        limit = verdict(figures)
        if settings.trace is not None:
            say("trace", write_trace(subject, settings.trace))
        if settings.try_seconds:
            actors, no_cluster = cluster_of(subject.loader.settings)
            facts = Facts(
                limit=limit,
                workers=subject.workers,
                decoding=decoding if settings.split == "train" else None,
                engines=tuple(component.name for component in components("engine")),
                holds=_holds(subject, figures),
                cuda=subject.device.type == "cuda",
                reading=_reading(figures),
                actors=actors,
                no_cluster=no_cluster,
            )
            measure, counted = Subject.training_round, "training with them"
            if limit == "loader":
                measure, counted = Subject.loader_round, "the loader alone"
            bench = stack.enter_context(
                Bench(points, subject, settings, rows=rows, measure=measure)
            )
            advise(bench, list(candidates(config, facts)), counted, budget_s)
    return 0


def _budget_s(subject: Subject, settings: BenchSettings) -> float:
    """Seconds for trying settings: most of them are given up after a round or two."""
    if not settings.try_seconds:
        return 0.0
    return _TRIED * (1.5 * settings.try_seconds + min(subject.first_batch_s, _START_S))


def _look(
    config: dict[str, Any], subject: Subject, settings: BenchSettings
) -> tuple[Any, Decoding | None, Figures]:
    """Some records' indices, how they are decoded, and the floor that they give."""
    threads = max(1, subject.workers)
    dataset = subject.loader.dataset
    if not isinstance(dataset, MapDataset):
        return None, None, Figures()
    rows, records = some_records(dataset.storage, settings.records or _RECORDS)
    decoder = build(config["dataset"]["decode"])
    if config["dataset"]["_target_"] != "dataset/map":  # decoded once, and held
        return rows, None, Figures(floor=floor_of(None, (), subject.batch, threads))
    decoding = look_at(decoder, build_transform(config, settings.split), records)
    say("decoding", decoding.text)
    return rows, decoding, Figures(floor=floor_of(decoder, records, subject.batch, threads))


def _measure(subject: Subject, figures: Figures, settings: BenchSettings) -> None:
    figures.made_up = subject.step.made_up
    named: dict[str, Callable[[float], Round]] = {
        "loader": subject.loader_round,
        "model": subject.model_round,
        "training": subject.training_round,
    }
    if figures.floor is not None:
        named["floor"] = figures.floor.round
    doing("measuring the loader, the model and both together")
    for results in alternate(
        list(named.values()), seconds=settings.seconds, rounds=settings.rounds
    ):
        figures.rounds = dict(zip(named, results, strict=True))


def _reading(figures: Figures) -> float:
    """Share of a sample's time in the loader's threads that is reading."""
    stages = times_of(figures.rounds["loader"]).stages_us if figures.rounds.get("loader") else {}
    return stages["read"] / max(sum(stages.values()), 1e-9) if stages else 0.0


def cluster_of(settings: LoaderSettings) -> tuple[int, str]:
    """Actors that there is room for, of the threads that one has; or why there is no cluster."""
    on_ray = settings.engine == "ray"
    if not (on_ray or os.environ.get("RAY_ADDRESS")):
        return 0, _NO_CLUSTER
    takes = {name: amount for name, amount in (settings.resources or {}).items() if amount}
    try:
        free = connected().available_resources()
        takes = takes or {"CPU": 1}
        return int(min(free.get(name, 0) // amount for name, amount in takes.items())), ""
    except FAILURES as error:
        return 0, last_line(error)


def _holds(subject: Subject, figures: Figures) -> bool:
    """Whether decoding everything once, into memory, is quickly tried; `eager` sees if it fits."""
    rate = figures.rate("floor")
    dataset = subject.loader.dataset
    if rate is None or isinstance(dataset, StreamDataset):
        return False
    return len(dataset) / (rate / max(1, subject.workers) * usable_cores()) < _HELD_S


def print_loader(subject: Subject) -> None:
    """Say what is measured, when its first batch came, and what memory it takes."""
    settings, dataset = subject.loader.settings, subject.loader.dataset
    is_stream = isinstance(dataset, StreamDataset)
    size = "a stream" if is_stream else f"{len(dataset):,} samples"
    if subject.loader.stats.drawn:
        size += f" of {len(subject.loader.stats.drawn)} sources"
    workers = f"{subject.workers} worker{'s' if subject.workers != 1 else ''}"
    choice = f"engine {settings.engine or 'default'}, {workers}"
    say("data", f"{size}, batches of {subject.loader.batch_size}, {choice}")
    say("first batch", f"after {subject.first_batch_s:.2f} s, workers started included; the loader "
        f"takes {megabytes(subject.memory_bytes)} of memory")  # fmt: skip


def print_figures(subject: Subject, figures: Figures) -> None:
    """Print the rates that were measured, and where the time of a sample goes."""
    if not any(figures.rounds.values()):
        return
    loader, floor = figures.rate("loader"), figures.rate("floor")
    waiting = times_of(figures.rounds.get("training", ())).wait_share
    notes = {
        "loader alone": (
            "loader",
            f"{loader / floor:.2f} of the floor" if loader and floor else "",
        ),
        "floor": ("floor", figures.floor.text if figures.floor is not None else ""),
        "model alone": ("model", "training step on one kept batch"),
        "both together": ("training", f"{waiting:.0%} of the time waiting for data"),
    }
    clear()
    write(f"\n{'':<15}{'samples/s':>10}")
    for label, (name, note) in notes.items():
        if rounds := figures.rounds.get(name):
            rate = f"{rate_of(rounds):>10,.0f}  +-{spread_of(rounds):>4.0%}"
            write(f"{label:<15}{rate}  {note}".rstrip())
    if figures.made_up:
        say("", "(the data has no classes: the model got made-up labels)")
    say("engine", subject.loader.engine_choice)
    times = times_of(figures.rounds.get("loader", ()))
    if stages := times.stages_us:
        total = max(sum(stages.values()), 1e-9)
        heading("where the loader's time goes, in each of its threads:")
        for name, each in stages.items():
            write(f"  {name:<13}{each:>10,.1f} us a sample {each / total:>5.0%}")
        write(f"  {'together':<13}{total:>10,.1f} us a sample")
        if (hit_rate := times.hit_rate) is not None:
            write(f"  the cache had {hit_rate:.0%} of the records")
        if shares := subject.loader.stats.shares:
            write(f"  drawn: {sources_text(shares)}")
    if figures.rounds.get("model") and figures.rounds.get("training"):
        is_here = subject.loader.settings.engine != "ray"
        heading(_verdict_text(figures, f": they share the {usable_cores()} cores" * is_here))


def verdict(figures: Figures) -> Literal["loader", "model"]:
    """Tell which of the two training waits for."""
    loader, model = figures.rate("loader"), figures.rate("model")
    return "loader" if loader is not None and model is not None and loader < model else "model"


def _verdict_text(figures: Figures, why: str) -> str:
    loader, model = figures.rate("loader"), figures.rate("model")
    training = figures.rate("training")
    assert loader is not None and model is not None and training is not None
    share = times_of(figures.rounds["training"]).wait_share
    if verdict(figures) == "loader":
        text = (f"The loader is the limit: the model could take {model / loader:.1f} times as "
                f"much, and waits {share:.0%} of its time.")  # fmt: skip
    else:
        text = (f"The model is the limit: the loader could give {loader / model:.1f} times as "
                f"much; training waits {share:.0%} of its time for data.")  # fmt: skip
    if training < _SHARED * min(loader, model):
        text += f" Together they are slower than either alone{why}."
    return text

"""What the bench prints of one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipeline.commands.bench.screen import (
    clear,
    heading,
    megabytes,
    rate_of,
    say,
    spread_of,
    times_of,
    write,
)
from pipeline.cores import usable_cores
from pipeline.loader.stats import sources_text

if TYPE_CHECKING:
    from pipeline.commands.bench.single import Figures
    from pipeline.commands.bench.subject import Subject

_LABELS = {
    "loader": "loader alone",
    "floor": "floor",
    "model": "model alone",
    "training": "both together",
}
_SHARED = 0.85


def print_loader(subject: Subject) -> None:
    """Say what is measured, when its first batch came, and what memory it takes."""
    settings, dataset = subject.loader.settings, subject.loader.dataset
    size = f"{len(dataset):,} samples" if hasattr(dataset, "__len__") else "a stream"
    if subject.loader.stats.drawn:
        size += f" of {len(subject.loader.stats.drawn)} sources"
    workers = f"{subject.workers} worker{'s' if subject.workers != 1 else ''}"
    choice = f"engine {settings.engine}, {workers}"
    say("data", f"{size}, batches of {subject.loader.batch_size}, {choice}")
    say("first batch", f"after {subject.first_batch_s:.2f} s, workers started included; the loader "
        f"takes {megabytes(subject.memory_bytes)} of memory")  # fmt: skip


def print_figures(subject: Subject, figures: Figures) -> None:
    """Print the rates that were measured, and where the time of a sample goes."""
    if not any(figures.rounds.values()):
        return
    clear()
    write(f"\n{'':<15}{'samples/s':>10}")
    for name, label in _LABELS.items():
        rounds = figures.rounds.get(name)
        if rounds:
            note = _note(name, figures)
            rate = f"{rate_of(rounds):>10,.0f}  +-{spread_of(rounds):>4.0%}"
            write(f"{label:<15}{rate}  {note}".rstrip())
    if figures.made_up:
        say("", "(the data has no classes: the model got made-up labels)")
    say("engine", subject.loader.engine_choice)
    _print_stages(subject, figures)
    if figures.rounds.get("model") and figures.rounds.get("training"):
        heading(_verdict_text(figures))


def _note(name: str, figures: Figures) -> str:
    rate, floor = figures.rate("loader"), figures.rate("floor")
    if name == "loader" and rate and floor:
        return f"{rate / floor:.2f} of the floor"
    if name == "floor" and figures.floor is not None:
        return figures.floor.text
    if name == "model":
        return "training step on one kept batch"
    if name == "training":
        return f"{times_of(figures.rounds['training']).wait_share:.0%} of the time waiting for data"
    return ""


def _print_stages(subject: Subject, figures: Figures) -> None:
    """Microseconds a sample of each stage, in the threads of the loader."""
    rounds = figures.rounds.get("loader")
    stages = times_of(rounds).stages_us if rounds else {}
    if not stages:
        return
    total = max(sum(stages.values()), 1e-9)
    heading("where the loader's time goes, in each of its threads:")
    for name, each in stages.items():
        write(f"  {name:<13}{each:>10,.1f} us a sample {each / total:>5.0%}")
    write(f"  {'together':<13}{total:>10,.1f} us a sample")
    if rounds and (hit_rate := times_of(rounds).hit_rate) is not None:
        write(f"  the cache had {hit_rate:.0%} of the records")
    if shares := subject.loader.stats.shares:
        write(f"  drawn: {sources_text(shares)}")


def verdict(figures: Figures) -> Literal["loader", "model"]:
    """Which of the two training waits for."""
    loader, model = figures.rate("loader"), figures.rate("model")
    return "loader" if loader is not None and model is not None and loader < model else "model"


def _verdict_text(figures: Figures) -> str:
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
        text += (f" Together they are slower than either alone: they share the "
                 f"{usable_cores()} cores.")  # fmt: skip
    return text

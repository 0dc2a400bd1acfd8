"""Settings that may help a configuration, as the user would type them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.commands.bench.decoding import Decoding
from pipeline.cores import usable_cores

PIXELS = "changes the pixels, which are encoded anew at quality 95"
_MUCH_READING = 0.15
"""Share of a sample's time from which on holding what was read is tried."""
ROUNDING = "changes the rounding of the weights"


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
    """

    typed: str
    overrides: tuple[str, ...] = ()
    how: Literal["typed", "lmdb", "tiled", "eager", "cached"] = "typed"
    changes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a configuration that decides what may help it.

    Attributes:
        limit: What training waits for.
        workers: How many workers there are.
        decoding: The way of decoding; None where there is no storage.
        engines: The engines there are.
        holds: Whether all decoded samples fit into memory and take no time to speak of.
        cuda: Whether the device is CUDA.
        reading: Share of a sample's time in the loader that is reading, 0 to 1.
    """

    limit: Literal["loader", "model"]
    workers: int
    decoding: Decoding | None
    engines: tuple[str, ...]
    holds: bool
    cuda: bool
    reading: float = 0.0


def candidates(config: dict[str, Any], facts: Facts) -> Iterator[Candidate]:
    """What is worth trying, the most likely first."""
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


def _typed(*overrides: str, changes: str = "") -> Candidate:
    return Candidate(" ".join(overrides), overrides, changes=changes)


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
        yield _typed("loader=ring", f"loader.num_workers={cores}")
        return
    for other in facts.engines:
        if other not in (engine, "inline", "auto") and workers:
            yield _typed(f"loader.engine={other}")
    if engine == "ring" and workers:
        for processes in {0, 1, workers} - {loader.get("processes") or 0}:
            yield _typed(f"loader.processes={processes}")
    counts = {max(2 * workers, 1), workers // 2 if workers > 1 else 0}
    if workers < cores:
        counts.add(cores)
    for number in sorted(counts - {workers}, reverse=True):
        if number <= 2 * cores:
            yield _typed(f"loader.num_workers={number}")

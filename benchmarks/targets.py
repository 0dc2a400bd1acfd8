"""Targets of the loader, as ratios of rows of one run, and the table that compares them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import markdown, paired, with_spread

BEST_PEER = "best peer"


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two rows' images per second, and its minimum."""

    text: str
    row: str
    other: str
    ratio: float


# fmt: off
TARGETS = [
    Target("files as they are / pure decoding of whole images", "ours-threads", "floor", 1.0),
    Target("files as they are / best peer", "ours-threads", BEST_PEER, 1.15),
    Target("tiled / best peer on files as they are", "ours-tiled", BEST_PEER, 1.8),
    Target("tiled, processes / the same", "ours-tiled-processes", BEST_PEER, 1.8),
    Target("tiled / tiled, decoded whole", "ours-tiled", "ours-tiled-whole", 1.35),
    Target("FFCV's preparation: ours / FFCV", "prepared-half-raw", "ffcv-prepared", 2.5),
    Target("the same, processes", "prepared-half-raw-processes", "ffcv-prepared", 2.5),
    Target(
        "raw, processes / crop and resize alone",
        "prepared-raw-processes", "resize-floor", 1 / 1.3,
    ),
]
# fmt: on


def targets_table(
    rates: Mapping[str, Sequence[float]],
    efforts: Mapping[str, Sequence[float]],
    peers: Sequence[str],
) -> str:
    """Return the Markdown table of the targets whose rows were measured.

    Args:
        rates: Images per second by row, one per round.
        efforts: Processor time per image by row, one per round.
        peers: Rows of peers that read the photographs as they are.
    """
    best = best_of(rates, peers)
    lines = []
    for target in TARGETS:
        other = best if target.other == BEST_PEER else target.other
        if not rates.get(target.row) or other is None or not rates.get(other):
            continue
        ratios = paired(rates[target.row], rates[other])
        spent = with_spread(paired(efforts[other], efforts[target.row]))
        reached = "yes" if statistics.median(ratios) >= target.ratio else "**no**"
        text = f"{target.text} ({other})" if target.other == BEST_PEER else target.text
        lines.append([text, with_spread(ratios), spent, f"{target.ratio:.2f}", reached])
    header = ["ratio", "images/s", "images per processor second", "to reach", "reached"]
    return markdown(header, lines) if lines else ""


def best_of(rates: Mapping[str, Sequence[float]], names: Sequence[str]) -> str | None:
    """Return the row with the highest median, or None if no row was measured."""
    measured = [name for name in names if rates.get(name)]
    return max(measured, key=lambda name: statistics.median(rates[name]), default=None)

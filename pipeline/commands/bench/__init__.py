"""``penstock bench``: what limits training, and which settings or storage would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt

from penstock.core.registry import register

if TYPE_CHECKING:
    from penstock.pipeline.commands.bench.points import Points


@register("settings", "bench")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How long to measure, and what beside the plain figures.

    With values separated by commas (``loader.num_workers=0,1,2,4``; one or two keys) the points
    are measured side by side, and give a table.

    Args:
        seconds: Time given to each measurement, in `rounds` that alternate.
        try_seconds: Time given to each setting that might help, and as much to the present one
            beside it; 0 tries none.
        rounds: How often measurements alternate.
        split: The split to read.
        records: Records that are looked at for the way of decoding and the floor, and packed
            where that is tried; null: 256. For `storages`, how many are packed into each form;
            null: 10,000, or fewer that make 256 MB.
        trace: Where to write a trace of some training steps, as JSON for ``chrome://tracing`` or
            Perfetto; null: nowhere.
        storages: Compare storages instead: pack records of the split into each form that can hold
            them, or into those of a list, and measure reading. ``bench storages`` is the same.
        keep: With `storages`, a new folder in which what was packed stays; null: a temporary one.
    """

    seconds: Annotated[float, Gt(0)] = 2.0
    try_seconds: Annotated[float, Ge(0)] = 1.5
    rounds: Annotated[int, Ge(1)] = 5
    split: Literal["train", "val"] = "train"
    records: Annotated[int, Ge(1)] | None = None
    trace: str | None = None
    storages: bool | str | list[str] = False
    keep: str | None = None


def run(points: Points) -> int:
    """Measure one configuration and what would help it, several side by side, or storages."""
    if points.points[0].config["bench"]["storages"]:
        from penstock.pipeline.commands.bench.storages import compare_storages

        return compare_storages(points)
    if len(points.points) > 1:
        from penstock.pipeline.commands.bench.sweep import measure_sweep

        return measure_sweep(points)
    from penstock.pipeline.commands.bench.single import measure_one

    return measure_one(points)

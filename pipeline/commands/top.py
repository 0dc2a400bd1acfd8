"""``penstock top``: how a run is doing, read from its folder again and again while it trains."""

from __future__ import annotations

import csv
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.registry import register
from penstock.pipeline.loader.stats import STAGES, limit_text

if TYPE_CHECKING:
    from rich.table import Table

_LOOK_S = 1.0
_TAIL_BYTES = 1 << 16


@register("settings", "top")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """Which run is looked at.

    Args:
        path: Its folder or its `run.name`; null: the newest below `outputs`.
    """

    path: str | None = None


def run(config: dict[str, Any]) -> int:
    """Show the run until it ends, or until Ctrl-C; where there is no terminal, as it is now."""
    from rich.console import Console
    from rich.live import Live

    from penstock.pipeline.build import build_settings
    from penstock.pipeline.training.run_folder import state_of_run

    settings: TopSettings = build_settings(config["top"])
    folder = _find_run(settings.path, config["outputs"])
    console = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        console.print(_view(folder, state_of_run(folder)))
        return 0
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            state = state_of_run(folder)  # before the figures, so that the last ones are seen
            live.update(_view(folder, state), refresh=True)
            if state != "running":
                break
            time.sleep(_LOOK_S)
    return 0


def _find_run(path: str | None, outputs: str) -> Path:
    """Return the folder of a run, by its path or ``run.name``; None: the newest run."""
    from penstock.pipeline.config.saved import SAVED, named_run, newest_first

    folders = [] if "://" in outputs else newest_first(Path(outputs).expanduser())
    if path is not None:
        folder = Path(named_run(path, outputs)).expanduser()
    else:
        folder = folders[0] if folders else Path(outputs)
    if not (folder / SAVED).is_file():
        near = folders[0] if folders else "<folder>, and make a run first: penstock train"
        raise ValueError(f"top.path: no {SAVED} in {str(folder)!r}; type path={near}")
    return folder


def _view(folder: Path, state: str) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, text in (("run", f"{folder}, {state}"), *_lines(folder, state)):
        table.add_row(name, text)
    return table


def _lines(folder: Path, state: str) -> Iterator[tuple[str, str]]:
    """Tell what is known, and nothing that is not."""
    metrics, timings = (newest_figures(folder / f"{name}.csv") for name in ("metrics", "timings"))
    if not (metrics or timings):
        yield "step", "no figures yet: they come every trainer.log_every steps, by logger=csv"
        return
    newest = metrics or timings  # metrics are cut back to where a run goes on, timings are not
    told = f"{int(newest['step']):,}, epoch {int(newest['epoch']) + 1}"
    if state == "running" and (age_s := _age_s(folder)) > 2 * _LOOK_S:
        told += f", logged {age_s:,.0f} s ago"
    yield "step", told
    for split in ("train", "val"):
        names = [name for name in metrics if name.startswith(f"{split}/")]
        if names:
            found = (f"{name.partition('/')[2]} {float(metrics[name]):.4g}" for name in names)
            yield split, ", ".join(found)
    yield from _times({n.removeprefix("time/"): float(v) for n, v in timings.items() if "/" in n})


def _times(times: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    if "samples_per_s" in times:
        yield "speed", f"{times['samples_per_s']:,.0f} samples/s"
        yield "waiting", f"{times['data_wait']:.0%} of the time for data"
    stages = {name: times[f"{name}_us"] for name in STAGES if f"{name}_us" in times}
    if stages:
        total = max(sum(stages.values()), 1e-9)
        shares = (f"{name} {us / total:.0%}" for name, us in stages.items())
        yield "a sample", f"{total:,.0f} us in the loader's threads: {', '.join(shares)}"
        yield "limit", limit_text(times["data_wait"], stages)
    if times.get("copy_us"):
        yield "copies", f"{times['copy_us']:,.0f} us a sample, to the device"
    workers = [f"at work {times['worker_use']:.0%} of the time"] if "worker_use" in times else []
    if "restarts" in times:
        workers += [f"{times['ready']:.0f} batches ready", f"{times['restarts']:.0f} replaced"]
    if workers:
        yield "workers", ", ".join(workers)
    if "cache_hits" in times:
        yield "cache", f"had {times['cache_hits']:.0%} of the records"
    if "fetched_mb" in times:
        yield "fetched", f"{times['fetched_mb']:,.1f} MB"
    if "pinned_mb" in times:
        yield "pinned", f"{times['pinned_mb']:,.1f} MB of page-locked memory"
    if "bad_samples" in times:
        yield "bad", f"{times['bad_samples']:.0f} bad samples"


def newest_figures(file: Path) -> dict[str, str]:
    """Read the newest figure of each column from the end of a CSV file that is being written."""
    try:
        with file.open("rb") as opened:
            head = opened.readline()
            begin = opened.tell()
            end = opened.seek(0, os.SEEK_END)
            opened.seek(max(begin, end - _TAIL_BYTES))
            cut = opened.tell() > begin
            lines = opened.read().split(b"\n")
    except FileNotFoundError:
        return {}
    whole = lines[cut:-1]  # neither one cut off in front, nor one that is not written to its end
    text = b"\n".join([head.rstrip(b"\n"), *whole]).decode()
    figures: dict[str, str] = {}
    for row in csv.DictReader(io.StringIO(text)):
        figures |= {name: value for name, value in row.items() if value}
    return figures


def _age_s(folder: Path) -> float:
    files = [file for name in ("metrics.csv", "timings.csv") if (file := folder / name).exists()]
    return time.time() - max(file.stat().st_mtime for file in files)

"""``penstock runs``: the runs below a folder, with what came out of them."""

from __future__ import annotations

import csv
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.core.registry import register
from penstock.pipeline.config.job import SAVED
from penstock.pipeline.config.sweep import figure
from penstock.pipeline.schedulers.units import better, rank


@register("settings", "runs")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSettings:
    """Which runs are listed, and in which order.

    Args:
        path: The folder below which runs lie; null: `outputs`, and ``multirun`` if there is one.
        sort: By ``time`` (the newest first), ``name``, or the ``best`` or ``last`` figure.
        tag: Only those with this tag; null: all.
    """

    path: str | None = None
    sort: Literal["time", "name", "best", "last"] = "time"
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it lies on the disk.

    Attributes:
        folder: Its folder.
        name: What it is called, or nothing.
        tags: Its tags.
        state: ``done``, ``running`` or ``stopped``.
        epochs: Epochs made, of how many.
        monitor: The figure that is watched.
        best: Its best value; None: none.
        best_epoch: The epoch that has it, counted from 1.
        last: Its last value.
        mode: Whether more or less of it is better.
    """

    folder: Path
    name: str
    tags: tuple[str, ...]
    state: str
    epochs: str
    monitor: str
    best: float | None
    best_epoch: int | None
    last: float | None
    mode: Literal["max", "min"]


def run(config: dict[str, Any]) -> int:
    """Print a table of the runs; damaged folders and those of others are counted."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from penstock.pipeline.build import build_settings

    settings: RunsSettings = build_settings(config["runs"])
    roots = [Path(settings.path)] if settings.path else [Path(config["outputs"])]
    if settings.path and not roots[0].is_dir():
        raise ValueError(f"runs.path: there is no folder {settings.path!r}; type runs.path=outputs")
    elif not settings.path and Path("multirun").is_dir():  # of Hydra's own sweeps
        roots.append(Path("multirun"))
    runs, skipped = [], 0
    for folder in (found for root in roots for found in _folders(root)):
        try:
            runs.append(read_run(folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            skipped += 1
    runs = [each for each in runs if settings.tag is None or settings.tag in each.tags]
    runs.sort(key=lambda each: each.folder, reverse=True)
    if settings.sort == "name":
        runs.sort(key=lambda each: (not each.name, each.name))
    elif settings.sort != "time":
        runs.sort(key=lambda each: rank(getattr(each, settings.sort), each.mode))
    table = Table(box=SIMPLE, padding=(0, 1), pad_edge=False)
    for heading in ("run", "name", "tags", "state", "epochs", "best", "at", "last", "of"):
        table.add_column(heading, justify="right" if heading in ("best", "at", "last") else "left")
    for each in runs:
        told = "" if each.best_epoch is None else str(each.best_epoch)
        row = (str(each.folder), each.name, ", ".join(each.tags), each.state, each.epochs)
        table.add_row(*row, figure(each.best), told, figure(each.last), each.monitor)
    console = Console(highlight=False)
    if runs:
        Console(highlight=False, width=None if console.is_terminal else 200).print(table)
    where = ", ".join(str(root) for root in roots)
    print(f"{len(runs)} run{'s' * (len(runs) != 1)} below {where}"
          + (f"; {skipped} skipped: damaged, or no run's" if skipped else ""))  # fmt: skip
    return 0


def _folders(root: Path) -> Iterator[Path]:
    """Find what may be runs: folders with a saved config, and those of a day that have none."""
    found = {file.parent for file in root.rglob(SAVED)}
    found |= {folder for folder in root.glob("????-??-??/*") if folder.is_dir()}
    return iter(sorted(found))


def read_run(folder: Path) -> Run:
    """Read what a run's folder says.

    Raises:
        ValueError: It is damaged, or no run's; also OSError, KeyError, TypeError, AttributeError.
    """
    import yaml

    try:
        config = yaml.safe_load((folder / SAVED).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{folder / SAVED} is damaged") from error
    trainer, called = config["trainer"], config.get("run") or {}
    rows = _rows(folder / "metrics.csv")
    summary = folder / "summary.json"
    result = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    known = {name[4:] for row in rows for name in row if name.startswith("val/")}
    name = str(trainer.get("monitor") or ("accuracy" if "accuracy" in known else "loss"))
    name = name.removeprefix("val/").removeprefix("val_")
    mode = trainer.get("monitor_mode") or better(name)
    column = f"val/{name}"
    seen = [(float(row[column]), int(row["epoch"]) + 1) for row in rows if row.get(column)]
    best, epoch = min(seen, key=lambda each: rank(each[0], mode), default=(None, None))
    done = result["epoch"] if result else max((int(row["epoch"]) for row in rows), default=0)
    state = "done" if result else "running" if _is_locked(folder / ".lock") else "stopped"
    return Run(
        folder=folder,
        name=str(called.get("name") or ""),
        tags=tuple(map(str, called.get("tags") or ())),
        state=state,
        epochs=f"{done}/{trainer['max_epochs']}" if trainer.get("max_epochs") else str(done),
        monitor=name if seen else "",
        best=best,
        best_epoch=epoch,
        last=seen[-1][0] if seen else None,
        mode=mode,
    )


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def _is_locked(file: Path) -> bool:
    """Whether a process trains in the folder of this lock, which is only looked at."""
    if not file.exists():
        return False
    with file.open() as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            pass
    return False

"""``penstock runs``: the runs below a folder, with what came out of them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.core.registry import register
from penstock.pipeline.commands.table import table_lines
from penstock.pipeline.config.saved import SAVED
from penstock.pipeline.schedulers.units import better, rank

_HEADS = ("run", "name", "tags", "state", "epochs", "best", "at", "last", "of")
_NUMBERS = ("best", "at", "last")


@register("settings", "runs")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunsSettings:
    """Which runs are listed, and in which order.

    Args:
        path: The folder below which runs lie, or its URL; null: `outputs`, and ``multirun`` if
            there is one.
        sort: By ``time`` (the newest first), ``name``, or the ``best`` or ``last`` figure.
        tag: Only those with this tag; null: all.
    """

    path: str | None = None
    sort: Literal["time", "name", "best", "last"] = "time"
    tag: str | None = None


def _written(value: Any) -> str:
    """Write a metric for a table; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class _Run(NamedTuple):
    """A row of the table, and by what it is sorted."""

    cells: tuple[str, ...]
    tags: list[str]
    order: dict[str, Any]


def run(config: dict[str, Any]) -> int:
    """Print a table of the runs; damaged folders and those of others are counted."""
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.training.run_folder import Outputs

    settings: RunsSettings = build_settings(config["runs"])
    roots = [Outputs.at(settings.path or config["outputs"], telling=True)]
    if settings.path and not roots[0].folder.is_dir():
        raise ValueError(f"runs.path: there is no folder {settings.path!r}; type runs.path=outputs")
    if not settings.path and Path("multirun").is_dir():  # of Hydra's own sweeps
        roots.append(Outputs(Path("multirun")))
    # Folders with a saved config, and those of a day that have none.
    found: dict[Path, str] = {}
    for root in roots:
        folders = [*root.folder.glob("????-??-??/*"), *(f.parent for f in root.folder.rglob(SAVED))]
        found |= {folder: root.name(folder) for folder in folders if folder.is_dir()}
    runs, skipped = [], 0
    for folder, name in sorted(found.items(), reverse=True):
        try:
            runs.append(_read(folder, name))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            skipped += 1
    runs = [each for each in runs if settings.tag is None or settings.tag in each.tags]
    if settings.sort != "time":
        runs.sort(key=lambda each: each.order[settings.sort])
    if runs:
        print(
            "", *table_lines(_HEADS, [each.cells for each in runs], numbers=_NUMBERS), "", sep="\n"
        )
    more = f"; {skipped} skipped: damaged, or no run's" if skipped else ""
    print(f"{len(runs)} run{'s' * (len(runs) != 1)} below {', '.join(map(str, roots))}{more}")
    return 0


def _read(folder: Path, shown: str) -> _Run:
    """Read what a run's folder says; raises whatever what is damaged, or no run's, leads to."""
    import yaml

    from penstock.pipeline.training.run_folder import state_of_run

    try:
        config = yaml.safe_load((folder / SAVED).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{folder / SAVED} is damaged") from error
    trainer, called = config["trainer"], config.get("run") or {}
    rows: list[dict[str, str]] = []
    if (file := folder / "metrics.csv").exists():
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    known = "accuracy" if any(row.get("val/accuracy") for row in rows) else "loss"
    name = str(trainer.get("monitor") or known).removeprefix("val/").removeprefix("val_")
    seen = [(float(v), int(row["epoch"]) + 1) for row in rows if (v := row.get(f"val/{name}"))]
    mode = trainer.get("monitor_mode") or better(name)
    best, epoch = min(seen, key=lambda each: rank(each[0], mode), default=(None, ""))
    last, done = seen[-1] if seen else (None, 0)
    title, tags = str(called.get("name") or ""), [str(tag) for tag in called.get("tags") or ()]
    epochs = f"{done}/{trainer.get('max_epochs') or 'any'}"
    cells = (
        shown,
        title,
        ", ".join(tags),
        state_of_run(folder),
        epochs,
        _written(best),
        str(epoch),
    )
    order = {"name": (not title, title), "best": rank(best, mode), "last": rank(last, mode)}
    return _Run((*cells, _written(last), name * bool(seen)), tags, order)

"""``penstock evaluate``: how good a trained model is on a test split, or on any other data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.contracts import TaskGroup
from penstock.core.registry import register
from penstock.pipeline.commands.table import csv_bytes, table_lines
from penstock.pipeline.training.output import check_output, print_line, write_output

if TYPE_CHECKING:
    import torch

    from penstock.pipeline.training.trained import Trained

_MOST_CLASSES = 2000  # with more, a confusion matrix would take much memory and tell nobody much
_MOST_ROWS = 50

Rows = dict[str, dict[str, float | None]]


@register("settings", "evaluate")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """Which model, on which data, and where to write.

    The metrics are those of training, over every sample once; by class and with the confusion
    matrix where the task has them. Checkpoint and data are given as to ``predict``.

    Args:
        checkpoint: A run's folder or ``run.name`` (its best checkpoint, or the last), or a
            checkpoint; or its URL.
        split: The split to evaluate on; null: the test split, or where there is none what the run
            was validated on; all of data that the run did not have, if it lies in one part.
        output: The ``.json`` file to write; beside it the confusion matrix, as
            ``<output>_confusion.csv`` and ``.png``: rows are the true classes. Of several tasks
            there is one for each: ``<output>_<task>_confusion.csv``.
        overwrite: Write over files that are there.
    """

    checkpoint: str
    split: Literal["train", "val", "test"] | None = None
    output: str = "evaluation.json"
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Measure a trained model on a split as its training's validation does.

    Raises:
        ValueError: The checkpoint, the data or the output cannot be used; on every rank.
    """
    from penstock.pipeline.learning.outputs import confused_names, named
    from penstock.pipeline.loader.stats import cut_text
    from penstock.pipeline.pictures.confusion import draw_confusion
    from penstock.pipeline.pictures.page import as_png
    from penstock.pipeline.training.report import Meter
    from penstock.pipeline.training.trained import opened_trained
    from penstock.pipeline.training.validation import class_tasks, validate

    with opened_trained(config, command="evaluate", endings=[".json"]) as opened:
        (world, trained, output), asked = opened, config["evaluate"]
        task, kinds = trained.task, class_tasks(trained.task)
        files = [output, *(file for part in kinds for file in confusion_files(output, part))]
        overwrite = asked["overwrite"]
        world.on_main(
            lambda: check_output("evaluate.output", files, [".json"], overwrite=overwrite)
        )
        meter = Meter(trained.batches)
        found = validate(
            trained.model,
            task,
            trained.batches,
            world,
            precision=trained.precision,
            limit=None,
            interrupted=lambda: False,
            meter=meter,
            by_class=all(kind.num_classes <= _MOST_CLASSES for kind in kinds.values()),
        )
        stats = trained.batches.loader.stats
        bad, cut_texts, cut_tokens = map(
            int, world.sum(stats.bad_samples, stats.cut_texts, stats.cut_tokens)
        )
        if not found:
            raise ValueError(
                f"evaluate: there are no samples{f' but {bad:,} bad ones' if bad else ''}; set "
                f"evaluate.split, or check the data"
            )
        if not world.is_main:
            return 0
        numbers = {name: value for name, value in found.items() if isinstance(value, float)}
        tensors = {name: value for name, value in found.items() if name not in numbers}
        classes: dict[str, Rows] = {}
        matrices: dict[Path, bytes] = {}
        for part, kind in kinds.items():
            names = list(map(str, named(range(kind.num_classes), kind.class_names)))
            start = f"{part}/" if part else ""
            its = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            classes[part] = rows_by_class(its, names)
            if "confusion" in its:
                table, picture = confusion_files(output, part)
                matrix = its["confusion"].tolist()
                called = confused_names(kind, matrix)
                lines = ([name, *row] for name, row in zip(called, matrix, strict=True))
                matrices[table] = csv_bytes([["true \\ predicted", *called], *lines])
                matrices[picture] = as_png(draw_confusion(matrix, called))
        result = {
            "checkpoint": str(trained.checkpoint),
            "split": trained.split,
            "samples": meter.samples,
            "bad_samples": bad,
            "cut_texts": cut_texts,
            "cut_tokens": cut_tokens,
            "metrics": {name: _number(value) for name, value in numbers.items()},
            "classes": classes if isinstance(task, TaskGroup) else classes.get("", {}),
        }
        for line in _told(trained, numbers, classes, output, asked=asked["split"] is not None):
            print_line(line)
        text = json.dumps(result, indent=1, ensure_ascii=False)
        written = {output: text.encode() + b"\n", **matrices}
        write_output("evaluate.output", written)
        left_out = f", {bad:,} bad samples left out" if bad else ""
        cut = f", {cut_text(cut_texts, cut_tokens)} cut" if cut_tokens else ""
        text = f"{meter.samples:,} samples{left_out}{cut} of {trained.data}"
        print_line(f"written: {', '.join(map(str, written))}: {text}")
    return 0


def confusion_files(output: Path, part: str) -> list[Path]:
    """Name the files of a confusion matrix: of one of several tasks, or of the only one."""
    stem = "_".join(filter(None, (output.stem, part, "confusion")))
    return [output.with_name(f"{stem}{ending}") for ending in (".csv", ".png")]


def rows_by_class(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> Rows:
    """Put together what is told of each class.

    Args:
        tensors: Figures [C], and a ``confusion`` matrix [C, C], or one with the background.
        names: The classes.

    Returns:
        Figures by class; None where one is not defined, as the precision of what was never
        predicted.
    """
    columns = {name: value for name, value in tensors.items() if value.ndim == 1}
    if (confusion := tensors.get("confusion")) is not None:
        hits, truth, said = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
        columns |= {"precision": hits / said, "recall": hits / truth}
        columns |= {"f1": 2 * hits / (truth + said), "count": truth}
        columns = {name: value[: len(names)] for name, value in columns.items()}
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {
        name: dict(zip(columns, map(_number, row), strict=True))
        for name, row in zip(names, values, strict=False)
    }


def _number(value: float) -> float | None:
    """A number that JSON has."""
    return None if value != value else value


def _told(
    trained: Trained,
    numbers: Mapping[str, float],
    classes: Mapping[str, Rows],
    output: Path,
    *,
    asked: bool,
) -> list[str]:
    """Lines of the figures, and of those of the classes."""
    lines = []
    if trained.split == "val" and trained.others and not asked:
        lines.append("no test split, so what was validated on; dataset.test_path=... names one")
    width = max(map(len, numbers))
    lines += [f"{name:<{width}}  {number:.4f}" for name, number in numbers.items()]
    for part, rows in classes.items():
        lines += table_of(rows, output, head=part or "class")
    return lines


def table_of(classes: Rows, output: Path, *, head: str = "class") -> list[str]:
    """Lines of what is told of each class; of those that nothing is known of there is none."""
    shown = {
        name: row
        for name, row in classes.items()
        if any(value is not None for name, value in row.items() if name != "count")
    }
    if len(shown) > _MOST_ROWS:
        return [f"{len(shown):,} classes: the figures of each are in {output}"]
    if not shown:
        return []
    figures = [*next(iter(shown.values()))]
    rows = ([name, *map(_shown, row.values())] for name, row in shown.items())
    return ["", *table_lines([head, *figures], rows, numbers=figures)]


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

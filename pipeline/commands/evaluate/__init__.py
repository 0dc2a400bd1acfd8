"""``penstock evaluate``: how good a trained model is on a test split, or on any other data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.registry import register


@register("settings", "evaluate")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSettings:
    """Which model, on which data, and where to write.

    The metrics are those of training, over every sample once; by class and with the confusion
    matrix where the task has them. Checkpoint and data are given as to ``predict``.

    Args:
        checkpoint: A run's folder (its best checkpoint, or the last), or a checkpoint; or its URL.
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
    """Compute, print and write the figures."""
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.commands.evaluate.job import evaluate

    return evaluate(config, build_settings(config["evaluate"]))

"""``python -m pipeline predict``: what a trained model says of every sample, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.registry import register


@register("settings", "predict")
@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    """Which model, of which samples, and where to write.

    Samples are read as in evaluation, each once and in order. A checkpoint in a run's folder
    brings its config along, the names of its classes and the figures of its table: other values
    may be given, such as ``dataset.storage.path=new``. One that lies elsewhere is of what is
    typed beside it.

    Several ranks share the work and write the same file, byte for byte, if each computes with
    the same number of threads (``trainer.num_threads``). All rows are held in memory.

    Args:
        checkpoint: A run's folder (its best checkpoint, or the last), or a checkpoint.
        split: The split to predict; null: all of data that the run did not have, and of its own
            what it was validated on. Data that lies in parts (train, val) is predicted by part.
        output: The file to write: ``.parquet``, or ``.csv``, where lists are JSON.
        overwrite: Write over a file that is there.
    """

    checkpoint: str
    split: Literal["train", "val"] | None = None
    output: str = "predictions.parquet"
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Write a row for each sample: its position, its key, and what the task tells."""
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.commands.predict.job import predict

    return predict(config, build_settings(config["predict"]))

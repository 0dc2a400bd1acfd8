"""``python -m pipeline predict``: what a trained model says of every sample, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from penstock.core.registry import register


@register("settings", "predict")
@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    """Which model, of which samples, and where to write.

    Samples are read as in evaluation, each once and in order. A checkpoint in a run's folder
    brings its config along, the names of its classes and the figures of its table. Other data is
    chosen beside it: images or a folder by their paths, ``dataset.storage.path=new``, or
    ``dataset=lmdb dataset.storage.path=new``; it is decoded as the run's was. A checkpoint that
    lies elsewhere is of what is typed beside it.

    Several ranks share the work and write the same file, byte for byte, if each computes with
    the same number of threads (``trainer.num_threads``). All rows are held in memory.

    Args:
        checkpoint: A run's folder (its best checkpoint, or the last), or a checkpoint; or its URL.
        split: The split to predict; null: the test split, or where there is none what the run was
            validated on; all of data that the run did not have, if it lies in one part.
        top: How many of the likeliest classes are told with their probabilities; null: all.
        output: The file to write: ``.parquet``, or ``.csv``, where lists are JSON.
        overwrite: Write over a file that is there.
    """

    checkpoint: str
    split: Literal["train", "val", "test"] | None = None
    top: Annotated[int, Ge(1)] | None = None
    output: str = "predictions.parquet"
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Write a row for each sample: its position, its key, and what the task tells."""
    from penstock.pipeline.build import build_settings
    from penstock.pipeline.commands.predict.job import predict

    return predict(config, build_settings(config["predict"]))

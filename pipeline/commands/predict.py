"""``penstock predict``: what a trained model says of every sample, as a table."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import PredictingTask
from penstock.core.registry import register
from penstock.pipeline.commands.table import csv_bytes
from penstock.pipeline.training.output import print_line, write_output

if TYPE_CHECKING:
    from penstock.pipeline.packing.report import Screen
    from penstock.pipeline.training.trained import Trained


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
        checkpoint: A run's folder or ``run.name`` (its best checkpoint, or the last), or a
            checkpoint; or its URL.
        split: The split to predict; null: the test split, or where there is none what the run was
            validated on; all of data that the run did not have, if it lies in one part.
        top: How many of the likeliest classes are told with their probabilities; null: all.
        output: The file to write: ``.parquet``; ``.csv``, where lists are JSON; or ``.json``, an
            object for each sample.
        overwrite: Write over a file that is there.
    """

    checkpoint: str
    split: Literal["train", "val", "test"] | None = None
    top: Annotated[int, Ge(1)] | None = None
    output: str = "predictions.parquet"
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Write what a model says of every sample of a split: a row with its position and its key.

    Raises:
        ValueError: The checkpoint, the data or the output cannot be used; on every rank.
    """
    import torch

    from penstock.pipeline.packing.report import Screen
    from penstock.pipeline.training.distributed.world import gather_in_order
    from penstock.pipeline.training.trained import opened_trained

    with opened_trained(config, command="predict", endings=tuple(_WRITTEN)) as opened:
        world, trained, output = opened
        if not isinstance(trained.task, PredictingTask):
            raise ValueError(
                f"task {type(trained.task).__name__} tells no predictions; give its class a "
                f"method predictions(outputs, batch), as in pipeline/tasks/classification.py"
            )
        of_all = "" if world.size == 1 else ", by this rank"
        screen = Screen(f"predict{of_all}", None, of="samples", shown=world.is_main)
        with torch.no_grad(), screen:
            columns = gather_in_order(_predicted(trained, config["predict"]["top"], screen), world)
        bad = int(world.sum(trained.batches.loader.stats.bad_samples)[0])
        if not len(columns["position"]):
            raise ValueError("predict: there are no samples; set predict.split, or check the data")
        tensors = {n: v.numpy() for n, v in columns.items() if isinstance(v, torch.Tensor)}
        world.on_main(lambda: write_table(output, {**columns, **tensors}))
        if world.is_main:
            left_out = f", {bad:,} bad samples left out" if bad else ""
            of = f" of {trained.data}" if trained.others else ""
            print_line(f"written: {output}, {len(columns['position']):,} rows{left_out}{of}")
    return 0


def _predicted(trained: Trained, top: int | None, screen: Screen) -> Iterator[dict[str, Any]]:
    """Compute what the task tells of each batch of this rank, as `gather_in_order` takes it."""
    from penstock.pipeline.learning.outputs import plain_columns

    task = trained.task
    assert isinstance(task, PredictingTask)
    for batch in trained.batches:
        with trained.precision():
            outputs = trained.model(batch)
        told = plain_columns(task.predictions(outputs, batch), top)
        yield {**{name: batch[name] for name in ("position", "valid", "key")}, **told}
        screen.add(batch["num_valid"])


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length.

    Args:
        path: Ends in ``.parquet``, ``.csv`` or ``.json``; its folder is made.
        columns: Numbers, texts, bytes, and lists of these; NumPy arrays [N] or [N, n].

    Raises:
        ValueError: It cannot be written.
    """
    write_output("predict.output", {path: _WRITTEN[path.suffix.lower()](columns)})


def _parquet(columns: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Of an array with several axes pyarrow takes a list of its rows.
    arrays = {
        name: pa.array(list(v) if isinstance(v, np.ndarray) and v.ndim > 1 else v)
        for name, v in columns.items()
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _rows(columns: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    return zip(*plain, strict=True)


def _csv(columns: Mapping[str, Any]) -> bytes:
    return csv_bytes([columns, *(map(_cell, row) for row in _rows(columns))])


def _json(columns: Mapping[str, Any]) -> bytes:
    lines = (
        json.dumps(dict(zip(columns, map(_plain, row), strict=True)), ensure_ascii=False)
        for row in _rows(columns)
    )
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """A value that JSON has: bytes as base64, and null for what is no number."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return value


_WRITTEN: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".json": _json,
}

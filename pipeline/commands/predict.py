"""``penstock predict``: write what a trained model says of every record, as a table."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import PredictingTask
from penstock.core.registry import register
from penstock.core.sample import Batch
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
    chosen beside it: images, a folder or a table by their paths, ``dataset.storage.path=new``, or
    ``dataset=lmdb dataset.storage.path=new``; it is decoded as the run's was. A checkpoint that
    lies elsewhere is of what is typed beside it.

    The data needs no labels. A record that cannot be read keeps its row: ``error`` says why, and
    the exit status is 1. Boxes, masks and keypoints are in pixels of the file.

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

    Returns:
        The exit status: 1 if a record could not be read.

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
            bad: dict[int, tuple[str, str]] = {}
            trained.batches.loader.on_bad = lambda fault: bad.setdefault(
                fault.position, (fault.key, " ".join(fault.cause.split()))
            )
            columns = gather_in_order(_predicted(trained, config["predict"]["top"], screen), world)
        for part in world.gather(bad):
            bad |= part
        if not len(columns["position"]) and not bad:
            raise ValueError("predict: there are no samples; set predict.split, or check the data")
        tensors = {n: v.numpy() for n, v in columns.items() if isinstance(v, torch.Tensor)}
        table = with_errors({**columns, **tensors}, bad)
        world.on_main(lambda: write_table(output, table))
        if world.is_main:
            failed = f", {len(bad):,} without a prediction (see the column error)" if bad else ""
            of = f" of {trained.data}" if trained.others else ""
            print_line(f"written: {output}, {len(table['position']):,} rows{failed}{of}")
    return 1 if bad else 0


def _predicted(trained: Trained, top: int | None, screen: Screen) -> Iterator[dict[str, Any]]:
    """Compute what the task tells of each batch of this rank, as `gather_in_order` takes it."""
    from penstock.pipeline.learning.outputs import plain_columns

    task = trained.task
    assert isinstance(task, PredictingTask)
    for batch in trained.batches:
        with trained.precision():
            outputs = trained.model(batch)
        told = plain_columns(task.predictions(outputs, _with_truth(trained, batch)), top)
        yield {**{name: batch[name] for name in ("position", "valid", "key")}, **told}
        screen.add(batch["num_valid"])


def _with_truth(trained: Trained, batch: Batch) -> Batch:
    """Return the batch as the task is to see it: with the true values where they are known."""
    import torch

    from penstock.pipeline.learning.unlabelled import TRUTHS

    if not trained.labelled:
        return {name: values for name, values in batch.items() if name not in TRUTHS}
    values = batch.get(trained.target) if trained.target else None
    if values is None:
        return batch
    if isinstance(values, list):
        values = torch.tensor([_number(value) for value in values])
    return {**batch, "target": values.float()}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def with_errors(columns: Mapping[str, Any], bad: Mapping[int, tuple[str, str]]) -> dict[str, Any]:
    """Add a row for each record that failed, and the column ``error``.

    Args:
        columns: ``position``, rising, and other columns of equal length.
        bad: Key and cause by position.

    Returns:
        ``position``, ``key``, ``error`` (None for a row with a prediction), and the other columns
        with None in the rows that failed.
    """
    found = columns["position"].tolist()
    positions = sorted({*found, *bad})
    place = {position: row for row, position in enumerate(found)}
    rows = [place.get(position) for position in positions]
    at = list(zip(positions, rows, strict=True))
    keys = columns.get("key", ())
    rest = {name: values for name, values in columns.items() if name not in ("position", "key")}
    if len(rows) > len(found):
        rest = {name: _spread(values, rows) for name, values in rest.items()}
    return {
        "position": np.array(positions, np.int64),
        "key": [bad[position][0] if row is None else keys[row] for position, row in at],
        "error": [bad[position][1] if row is None else None for position, row in at],
        **rest,
    }


def _spread(values: Any, rows: Sequence[int | None]) -> Any:
    """Put values at their rows, and nothing at the rows that failed."""
    if not isinstance(values, np.ndarray) or values.ndim > 1:
        return [None if row is None else values[row] for row in rows]
    failed = np.array([row is None for row in rows])
    return np.ma.masked_array(values[[row or 0 for row in rows]], failed)


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length.

    Args:
        path: Ends in ``.parquet``, ``.csv`` or ``.json``; its folder is made.
        columns: Numbers, texts, bytes, and lists of these; NumPy arrays [N] or [N, n]. A value may
            be None or masked.

    Raises:
        ValueError: It cannot be written.
    """
    write_output("predict.output", {path: _WRITTEN[path.suffix.lower()](columns)})


def _parquet(columns: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: _arrow(name, values) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _arrow(name: str, values: Any) -> Any:
    """Make an Arrow array whose type does not depend on whether anything was found."""
    import pyarrow as pa

    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, mask=np.ma.getmaskarray(values))
    # pyarrow takes an array with several axes as a list of its rows.
    array = pa.array(list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values)
    if "null" not in str(array.type):
        return array
    texts, numbers = pa.list_(pa.string()), pa.list_(pa.float64())
    kinds = {
        "error": pa.string(),
        "boxes": pa.list_(numbers),
        "scores": numbers,
        **dict.fromkeys(("classes", "masks", "predicted", "labels"), texts),
    }
    kind = kinds.get(name.rpartition("_")[2])
    return array if kind is None else array.cast(kind)


def _rows(columns: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    plain = [
        v.tolist()
        if isinstance(v, np.ndarray)
        else [each.tolist() if isinstance(each, np.ndarray) else each for each in v]
        for v in columns.values()
    ]
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

"""Predictions from a checkpoint to a file, by one process or by the ranks of torchrun."""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.core.contracts import PredictingTask
from penstock.core.files import write_whole
from penstock.pipeline.build import build_settings
from penstock.pipeline.learning.outputs import plain_columns
from penstock.pipeline.training.distributed import World, gather_in_order, joined
from penstock.pipeline.training.output import check_output, print_line, spoken_lines
from penstock.pipeline.training.trained import Trained, open_trained

if TYPE_CHECKING:
    from penstock.pipeline.commands.predict import PredictSettings

_KINDS = (".parquet", ".csv")
_EVERY_S = 10.0


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length.

    Args:
        path: Ends in ``.parquet`` or ``.csv``; its folder is made.
        columns: Numbers, texts, bytes, and lists of these; NumPy arrays [N] or [N, n].

    Raises:
        ValueError: It cannot be written.
    """
    content = _parquet(columns) if path.suffix.lower() == ".parquet" else _csv(columns)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise ValueError(
            f"predict.output: {path} cannot be written: {error.strerror}; choose another path"
        ) from error


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


def _csv(columns: Mapping[str, Any]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    writer.writerows(map(_cell, row) for row in zip(*plain, strict=True))
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return value


def predict(config: dict[str, Any], settings: PredictSettings) -> int:
    """Write what a model says of every sample of a split.

    Raises:
        ValueError: The checkpoint, the data or the output cannot be used; on every rank.
    """
    trainer = build_settings(config["trainer"])
    output = Path(settings.output).expanduser()
    with ExitStack() as stack:
        world = stack.enter_context(joined(trainer.device, trainer.timeout_s))
        stack.enter_context(spoken_lines(world.rank))
        overwrite = settings.overwrite
        world.on_main(lambda: check_output("predict", [output], _KINDS, overwrite=overwrite))
        trained = open_trained(config, command="predict", world=world, stack=stack)
        if not isinstance(trained.task, PredictingTask):
            raise ValueError(
                f"task {type(trained.task).__name__} tells no predictions; give its class a "
                f"method predictions(outputs, batch), as in pipeline/tasks/classification.py"
            )
        with torch.no_grad():
            rows = _predicted(trained, trained.task, world, settings.top)
            columns = gather_in_order(rows, world)
        bad = int(world.sum(trained.batches.loader.stats.bad_samples)[0])
        world.on_main(lambda: _write(output, columns))
        if world.is_main:
            left_out = f", {bad:,} bad samples left out" if bad else ""
            of = f" of {trained.data}" if trained.others else ""
            print_line(f"written: {output}, {len(columns['position']):,} rows{left_out}{of}")
    return 0


def _predicted(
    trained: Trained, task: PredictingTask, world: World, top: int | None
) -> Iterator[dict[str, Any]]:
    """Compute what the task tells of each batch of this rank, as `gather_in_order` takes it."""
    rows, said_s = 0, time.monotonic()
    for batch in trained.batches:
        with trained.precision():
            outputs = trained.model(batch)
        told = plain_columns(task.predictions(outputs, batch), top)
        yield {**{name: batch[name] for name in ("position", "valid", "key")}, **told}
        rows += batch["num_valid"]
        if world.is_main and time.monotonic() - said_s > _EVERY_S:
            said_s = time.monotonic()
            share = " by this rank" if world.size > 1 else ""
            print_line(f"{rows:,} samples{share} so far")


def _write(output: Path, columns: dict[str, Any]) -> None:
    if not len(columns["position"]):
        raise ValueError("predict: there are no samples; set predict.split, or check the data")
    write_table(
        output,
        {
            name: values.numpy() if isinstance(values, torch.Tensor) else values
            for name, values in columns.items()
        },
    )

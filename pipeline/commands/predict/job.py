"""Predictions from a checkpoint to a file, by one process or by the ranks of torchrun."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from torch import nn

from penstock.core.contracts import PredictingTask
from penstock.core.files import write_whole
from penstock.datasets.records.splits import find_parts
from penstock.pipeline.build import (
    build_device_transforms,
    build_loader,
    build_model,
    build_settings,
    build_task,
)
from penstock.pipeline.config.combinations import task_field
from penstock.pipeline.device import DevicePrefetcher
from penstock.pipeline.training.checkpoint import (
    CheckpointFolder,
    load_weights,
    read_checkpoint,
)
from penstock.pipeline.training.distributed import World, gather_in_order, joined
from penstock.pipeline.training.job import prepare_torch
from penstock.pipeline.training.loop import precision_of
from penstock.pipeline.training.output import print_line, spoken_lines
from penstock.pipeline.training.run_folder import TABLE, read_classes

if TYPE_CHECKING:
    from penstock.pipeline.commands.predict import PredictSettings

_KINDS = (".parquet", ".csv")
_EVERY_S = 10.0


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot or may not be written, before anything is computed.

    Raises:
        ValueError: It is of another kind, or there is one and `overwrite` is off.
    """
    if path.suffix.lower() not in _KINDS:
        raise ValueError(
            f"predict.output is {str(path)!r}, expected a file name that ends in .parquet or .csv"
        )
    if path.is_dir():
        raise ValueError(f"predict.output: {path} is a folder; name a file")
    if os.path.lexists(path) and not overwrite:
        raise ValueError(
            f"predict.output: {path} exists; choose another path, or set predict.overwrite=true"
        )
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"predict.output: {folder} is no folder that can be written to")


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
        world.on_main(lambda: check_output(output, overwrite=settings.overwrite))
        checkpoint = find_checkpoint(Path(settings.checkpoint).expanduser())
        content = read_checkpoint(checkpoint)
        prepare_torch(trainer, world.device)
        run_dir = run_of(checkpoint)
        read, group = reading_config(config, run_dir, world.size)
        split = settings.split or "val"
        whole = settings.split is None and _takes_all(read, run_dir)
        loader = build_loader(read, split, rank=world.rank, world_size=world.size, group=group)
        stack.callback(loader.close)
        model, task = _model_and_task(read, loader, run_dir)
        load_weights(
            model,
            content["model"],
            where=f"predict.checkpoint: {checkpoint} does not fit this model",
            remedy="give the model and the data that it was trained with",
        )
        layout = torch.channels_last if trainer.channels_last else torch.preserve_format
        model = model.to(device=world.device, memory_format=layout).eval()  # type: ignore[call-overload]
        transforms = build_device_transforms(config, "val")
        batches = DevicePrefetcher(loader, world.device, transforms)
        rows = _predicted(model, task, batches, world, precision_of(trainer, world.device))
        with torch.no_grad():
            columns = gather_in_order(rows, world)
        bad = int(world.sum(loader.stats.bad_samples)[0])
        world.on_main(lambda: _write(output, columns))
        if world.is_main:
            left_out = f", {bad:,} bad samples left out" if bad else ""
            other = "train" if split == "val" else "val"
            of = "" if whole else f" of the split {split}; the others: predict.split={other}"
            print_line(f"written: {output}, {len(columns['position']):,} rows{left_out}{of}")
    return 0


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path names: itself, or the best or else the last of a run's folder.

    Raises:
        ValueError: There is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise ValueError(
                f"predict.checkpoint: {path} does not exist; give a run's folder or a checkpoint"
            )
        return path
    folder = CheckpointFolder(path / "checkpoints")
    for candidate in (folder.best, folder.last):
        if candidate.exists():
            return candidate
    raise ValueError(
        f"predict.checkpoint: {path} has no checkpoints; give the folder of a run that has "
        f"written one"
    )


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint lies in; None where it lies elsewhere."""
    folder = checkpoint.resolve().parent.parent
    return folder if (folder / "config.yaml").is_file() else None


def reading_config(
    config: dict[str, Any], run_dir: Path | None, world_size: int
) -> tuple[dict[str, Any], int]:
    """The config with its data read as predictions need it, whichever split it is of.

    Every record once and in order, evaluated, in whole batches to a rank: a model's outputs may
    differ in their last bits by how many rows it gets at once, so that ranks get what a single
    process would.

    Args:
        config: The plain config.
        run_dir: Of the run, whose figures scale a table; None: the data's own do.
        world_size: Number of ranks.

    Returns:
        The config, and how many positions stay together.
    """
    read = deepcopy(config)
    read["augment"] |= {"train": read["augment"]["eval"], "device": {}}
    read["sampler"] = {"_target_": "sampler/sequential"}
    loader = read["loader"]
    rows = loader["eval_batch_size"] or loader["batch_size"]
    loader |= {
        "batch_size": rows * world_size,
        "eval_batch_size": None,
        "drop_last": False,
        "on_error": loader["eval_on_error"],
    }
    decode = read["dataset"].get("decode") or {}
    if decode.get("_target_") == "decode/table" and run_dir and (run_dir / TABLE).exists():
        decode["statistics"] = decode["statistics"] or str(run_dir / TABLE)
    return read, rows


def _takes_all(config: dict[str, Any], run_dir: Path | None) -> bool:
    """Have all records predicted, if it is data that the run did not have, and in one part.

    Args:
        config: Its ``dataset`` is changed.
        run_dir: Of the run; None: nothing is known of it.

    Returns:
        Whether nothing is left out.
    """
    dataset = config["dataset"]
    part = "source" if "source" in dataset else "storage"
    theirs = {}
    if run_dir:
        theirs = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))["dataset"]
    data = dataset.get(part) or {}
    if "val_fraction" not in dataset or find_parts(data.get("path")) or dataset.get("val_path"):
        return False
    if data != theirs.get(part) and dataset["val_fraction"] == theirs.get("val_fraction", 0.2):
        dataset["val_fraction"] = 1.0
    return dataset["val_fraction"] == 1


def _model_and_task(
    config: dict[str, Any], loader: Any, run_dir: Path | None
) -> tuple[nn.Module, PredictingTask]:
    """Both as the run made them: told the classes that it was trained on."""
    kept = read_classes(run_dir) if run_dir else {}

    def classes_of(field: str) -> tuple[str, ...] | None:
        return kept.get(field) or loader.classes_of(field)

    names = classes_of(task_field(config))
    known = {"table": loader.table, "classes_of": classes_of}
    model = build_model(config, len(names or ()), **known)
    task = build_task(config, len(names or ()), names, **known)
    if not isinstance(task, PredictingTask):
        raise ValueError(
            f"task {type(task).__name__} tells no predictions; give its class a method "
            f"predictions(outputs, batch), as in pipeline/tasks/classification.py"
        )
    return model, task


def _predicted(
    model: nn.Module,
    task: PredictingTask,
    batches: DevicePrefetcher,
    world: World,
    precision: Callable[[], Any],
) -> Iterator[dict[str, Any]]:
    """Compute what the task tells of each batch of this rank, as `gather_in_order` takes it."""
    rows, said_s = 0, time.monotonic()
    for batch in batches:
        with precision():
            outputs = model(batch)
        told = task.predictions(outputs, batch)
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

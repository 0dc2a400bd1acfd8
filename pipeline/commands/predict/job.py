"""Predictions from a checkpoint to a file, by one process or by the ranks of torchrun."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from datasets.protocols import PredictingTask
from pipeline.build import build_loader, build_settings
from pipeline.build_training import build_model, build_task
from pipeline.build_transforms import build_device_transforms
from pipeline.commands.predict.table_file import check_output, write_table
from pipeline.config.task_fields import task_field
from pipeline.device import DevicePrefetcher
from pipeline.training.checkpoint import CheckpointFolder, read_checkpoint
from pipeline.training.class_record import read_classes
from pipeline.training.distributed import World, joined
from pipeline.training.gathering import gather_in_order
from pipeline.training.job import prepare_torch
from pipeline.training.loop import precision_of
from pipeline.training.output import print_line, spoken_lines
from pipeline.training.table_record import NAME as TABLE
from pipeline.training.weights import load_weights

if TYPE_CHECKING:
    from pipeline.commands.predict import PredictSettings

_EVERY_S = 10.0


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
        split = settings.split
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
            print_line(f"written: {output}, {len(columns['position']):,} rows{left_out}")
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
    read["sampler"] = {"_target_": "sampler/inference"}
    loader = read["loader"]
    rows = loader["eval_batch_size"] or loader["batch_size"]
    loader |= {
        "batch_size": rows * world_size,
        "eval_batch_size": None,
        "on_error": loader["eval_on_error"],
    }
    decode = read["dataset"].get("decode") or {}
    if decode.get("_target_") == "decode/table" and run_dir and (run_dir / TABLE).exists():
        decode["statistics"] = decode["statistics"] or str(run_dir / TABLE)
    return read, rows


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
    """What the task tells of each batch of this rank, as `gather_in_order` takes it."""
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

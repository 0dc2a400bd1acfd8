"""The training job: from a checked config to a trained model and a row of results."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# Before torch is imported, which loads OpenMP: threads that spin while they wait take the cores
# from the loader's workers. On two cores with two workers the demo trained at 160 samples/s with
# OpenMP's default, at 1,000 with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from pipeline.build import build_loader, build_settings
from pipeline.build_training import (
    build_loggers,
    build_model,
    build_optimizer,
    build_scheduler,
    build_task,
)
from pipeline.build_transforms import build_device_transforms
from pipeline.config.task_fields import task_classes, task_field
from pipeline.device import DevicePrefetcher
from pipeline.training.checkpoint import CheckpointFolder, read_checkpoint
from pipeline.training.class_record import keep_classes
from pipeline.training.distributed import World, joined
from pipeline.training.fixed_batches import FixedBatches
from pipeline.training.given_values import given_values, values_of
from pipeline.training.interrupt import Interrupt
from pipeline.training.loop import fit
from pipeline.training.output import logged_to, spoken_lines
from pipeline.training.parts import Parts
from pipeline.training.progress import make_progress
from pipeline.training.random_states import seed_random_states
from pipeline.training.recorder import Recorder
from pipeline.training.report import report_end, report_start
from pipeline.training.run_folder import RunFolder, open_run_folder, write_whole
from pipeline.training.settings import TrainerSettings
from pipeline.training.state import RunState
from pipeline.training.table_record import keep_table


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train as a config says.

    Args:
        config: Plain and checked, as `pipeline.compose` gives it.

    Returns:
        Results in plain values: the validation's figures (``val/accuracy``, ...), ``epoch``,
        ``step``, ``samples_per_s``, ``data_wait`` (a share), ``bad_samples``, ``run_dir``.

    Raises:
        ValueError: The data, the checkpoint or the settings cannot be used.
        SystemExit: 130 after Ctrl-C, with everything saved.
    """
    try:
        return _train(config, build_settings(config["trainer"]))
    except KeyboardInterrupt as error:  # before the first step or after the last
        print("\nstopped", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from error


def _train(config: Mapping[str, Any], settings: TrainerSettings) -> dict[str, Any]:
    with ExitStack() as stack:
        world = stack.enter_context(joined(settings.device, settings.timeout_s))
        stack.enter_context(spoken_lines(world.rank))
        folder, run_dir, checkpoint = _claim_folder(config, world)
        if folder is not None:
            stack.callback(folder.release)
        stack.enter_context(logged_to(run_dir / "log.txt" if world.is_main else None))
        prepare_torch(settings, world.device)
        seed_random_states(config["seed"])
        parts = _build_parts(config, settings, world, run_dir, stack)
        seed_random_states(config["seed"], world.rank)

        world.on_main(
            lambda: keep_table(
                run_dir,
                parts.train.loader.table,
                resumes=checkpoint is not None,
                anyway=settings.resume_anyway,
            )
        )
        classes = task_classes(config, parts.train.loader.classes_of)
        world.on_main(lambda: keep_classes(run_dir, classes))
        state = RunState()
        loggers = _build_loggers(config, run_dir) if world.is_main else {}
        progress = make_progress(settings.progress, settings.max_epochs, is_main=world.is_main)
        recorder = Recorder(
            parts,
            state,
            world,
            settings=settings,
            run_dir=run_dir,
            loggers=loggers,
            progress=progress,
        )
        stack.callback(recorder.close)
        stack.callback(progress.close)
        if checkpoint is not None:
            recorder.restore(checkpoint)
        if folder is not None:
            folder.write_config(config)
            report_start(parts, world, run_dir)
        interrupt = stack.enter_context(Interrupt(speaks=world.is_main))
        done = fit(
            parts,
            state,
            recorder,
            settings=settings,
            world=world,
            interrupted=lambda: interrupt.requested,
        )
        progress.close()
        results = _results(parts, state, recorder, world)
        times = {"train": recorder.meter.summary(), "val": recorder.val_meter.summary()}
        if world.is_main:
            if done:
                kept = {**results, "times": times}
                write_whole(run_dir / "summary.json", json.dumps(kept, indent=2) + "\n")
            report_end(results, times, interrupted=not done)
        if not done:
            raise SystemExit(interrupt.exit_code)
    return results


def _claim_folder(
    config: Mapping[str, Any], world: World
) -> tuple[RunFolder | None, Path, dict[str, Any] | None]:
    """The run's folder (owned by rank 0), its path, and the checkpoint to go on from."""
    owned: list[RunFolder] = []

    def claim() -> tuple[str, str | None]:
        folder = open_run_folder(config)
        owned.append(folder)
        if not folder.resumes:
            folder.write_config(config)
            return str(folder.path), None
        (folder.path / "summary.json").unlink(missing_ok=True)
        checkpoint = folder.checkpoint
        if checkpoint is None:
            newest = CheckpointFolder(folder.path / "checkpoints").load_newest()
            checkpoint = newest[0] if newest else None
        return str(folder.path), str(checkpoint) if checkpoint else None

    path, checkpoint = world.on_main(claim)
    content = read_checkpoint(Path(checkpoint)) if checkpoint else None
    return (owned[0] if owned else None), Path(path), content


def prepare_torch(settings: TrainerSettings, device: torch.device) -> None:
    """Threads and determinism; on the CPU it costs nothing to be deterministic."""
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    strict = settings.deterministic or device.type == "cpu"
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(strict, warn_only=True)
    # Filling memory that is about to be written would cost time and change nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not strict


def _build_parts(
    config: Mapping[str, Any],
    settings: TrainerSettings,
    world: World,
    run_dir: Path,
    stack: ExitStack,
) -> Parts:
    """Everything that training works on, in the order in which data flows."""
    # Batches that are kept are validated on, too, with the steps of validation.
    device = world.device if settings.overfit_batches is None else None

    def open_loader(split: Any) -> Any:
        loader = build_loader(
            config, split, rank=world.rank, world_size=world.size, run_dir=run_dir, device=device
        )
        stack.callback(loader.close)
        return loader

    def on_device(loader: Any, split: Any) -> DevicePrefetcher:
        transforms = build_device_transforms(config, split, device)
        return DevicePrefetcher(loader, world.device, transforms)

    train: Any = open_loader("train")
    if settings.overfit_batches is not None:
        train = FixedBatches(train, settings.overfit_batches)
        val: Any = train.again()
    else:
        val = open_loader("val") if settings.validate_every else None
    class_names = train.classes_of(task_field(config))
    num_classes = len(class_names or ())

    model = build_model(config, num_classes, table=train.table, classes_of=train.classes_of)
    memory_format = torch.channels_last if settings.channels_last else torch.preserve_format
    model = model.to(device=world.device, memory_format=memory_format)  # type: ignore[call-overload]
    optimizer = build_optimizer(config, [p for p in model.parameters() if p.requires_grad])
    groups = values_of(optimizer)
    num_batches = _num_batches(train, settings)
    total_steps = _total_steps(num_batches, settings)
    scheduler = build_scheduler(config, optimizer, total_steps)
    schedule = {
        "scheduler": config.get("scheduler"),
        "total_steps": total_steps,
        "interval": settings.scheduler_interval,
    }
    return Parts(
        model=model,
        task=build_task(
            config, num_classes, class_names, table=train.table, classes_of=train.classes_of
        ),
        optimizer=optimizer,
        scheduler=scheduler,
        given=given_values(groups, scheduler, schedule),
        scaler=torch.amp.GradScaler(world.device.type, enabled=settings.amp == "fp16"),
        train=on_device(train, "train"),
        val=on_device(val, "val") if _has_batches(val) else None,
        num_batches=num_batches,
    )


def _has_batches(loader: Any) -> bool:
    try:
        return loader is not None and len(loader) > 0
    except TypeError:  # a stream
        return True


def _num_batches(loader: Any, settings: TrainerSettings) -> int | None:
    """Batches that an epoch trains on; None for a stream of unknown length."""
    limit = settings.limit_train_batches
    try:
        length = len(loader)
    except TypeError:
        return None
    if length == 0:
        raise ValueError(
            f"training has no batches: the data is smaller than loader.batch_size "
            f"({loader.batch_size}); lower it, or set loader.drop_last=false"
        )
    return length if limit is None else min(limit, length)


def _total_steps(num_batches: int | None, settings: TrainerSettings) -> int | None:
    """How often the scheduler will be stepped in the whole run; None if unknown."""
    if settings.scheduler_interval == "epoch":
        return settings.max_epochs
    if num_batches is None or settings.max_epochs is None:
        return settings.max_steps
    steps = settings.max_epochs * -(-num_batches // settings.accumulate)
    return min(steps, settings.max_steps or steps)


def _build_loggers(config: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The loggers by their names in the config."""
    names = [name for name, node in config["logger"].items() if node]
    return dict(zip(names, build_loggers(config, run_dir), strict=True))


def _results(parts: Parts, state: RunState, recorder: Recorder, world: World) -> dict[str, Any]:
    loaders = [parts.train.loader, *([parts.val.loader] if parts.val is not None else [])]
    bad = sum(_bad_samples(loader) for loader in loaders)
    speed = recorder.meter.total()
    return {
        **{f"val/{name}": value for name, value in (state.metrics or {}).items()},
        "epoch": state.epoch,
        "step": state.step,
        **speed,
        "bad_samples": int(world.sum(bad)[0]),
        "run_dir": str(recorder.run_dir),
    }


def _bad_samples(loader: Any) -> int:
    return getattr(getattr(loader, "stats", None), "bad_samples", 0)

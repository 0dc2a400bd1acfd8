"""Run the training job: from a checked config to a trained model and a row of results."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

# Before torch is imported, which loads OpenMP: threads that spin while they wait take the cores
# from the loader's workers. On two cores with two workers the demo trained at 160 samples/s with
# OpenMP's default, at 1,000 with this.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import Logger
from penstock.core.sample import Batch
from penstock.datasets.files.access import is_url
from penstock.pipeline.build import build_loggers, build_settings
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.schema import refuse_library_mistakes
from penstock.pipeline.learning.fields import task_classes
from penstock.pipeline.schedulers.units import better
from penstock.pipeline.training.checkpoint import (
    CheckpointFolder,
    RunState,
    read_checkpoint,
    read_weights,
    seed_random_states,
)
from penstock.pipeline.training.distributed.strategy import Strategy, strategy_named
from penstock.pipeline.training.distributed.world import World, joined
from penstock.pipeline.training.loop import fit
from penstock.pipeline.training.output import Interrupt, logged_to, spoken_lines
from penstock.pipeline.training.parts import Parts, build_parts, check_monitor, figures_of
from penstock.pipeline.training.recorder import Recorder
from penstock.pipeline.training.remote_logger import RemoteLogger
from penstock.pipeline.training.report import make_progress, report_end, report_start
from penstock.pipeline.training.run_copy import SUMMARY
from penstock.pipeline.training.run_folder import (
    RunFolder,
    keep_classes,
    keep_table,
    open_run_folder,
    write_whole,
)
from penstock.pipeline.training.settings import TrainerSettings, monitored

_log = logging.getLogger(__name__)


def train(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train as a config says.

    Args:
        config: Plain and checked, as `penstock.compose` gives it.

    Returns:
        Results in plain values: the figures of the last validation (``val/accuracy``, ...) and of
        the best (``best/accuracy``, ...), ``monitor``, ``best_epoch``, ``epoch``, ``step``,
        ``samples_per_s``, ``data_wait`` (a share), ``bad_samples``, ``cut_texts``, ``cut_tokens``,
        ``run_dir``.

    Raises:
        ConfigError: A class of a library is missing or takes other arguments.
        ValueError: The data, the checkpoint or the settings cannot be used.
        ExplainedError: A URL cannot be read, or the run's folder at one lacks what is here.
        SystemExit: 130 after Ctrl-C, with everything saved.
    """
    register_components(config.get("imports") or ())
    refuse_library_mistakes(config)
    try:
        return _train(config, build_settings(config["trainer"]))
    except KeyboardInterrupt as error:  # before the first step or after the last
        print("\nstopped", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from error


def watched(config: Mapping[str, Any]) -> tuple[str, Literal["max", "min"]]:
    """Name the figure that decides what is the best, and tell whether more of it is better."""
    settings = build_settings(config["trainer"])
    name = monitored(settings, figures_of(config) or ())
    return name, settings.monitor_mode or better(name)


def _train(config: Mapping[str, Any], settings: TrainerSettings) -> dict[str, Any]:
    with ExitStack() as stack:
        shares = strategy_named(settings.strategy)
        check_place(config, settings, shares)
        world = stack.enter_context(
            joined(settings.device, settings.timeout_s, grouped=shares.shards)
        )
        stack.enter_context(spoken_lines(world.rank))
        check_monitor(config, settings)
        check_compiler(settings)
        strategy = shares(world)
        folder, run_dir, named, checkpoint = _claim_folder(config, world, strategy, stack)
        begins = checkpoint is None and settings.init_from is not None
        initial = read_weights(str(settings.init_from)) if begins else None
        stack.enter_context(logged_to(run_dir / "log.txt" if world.is_main else None))
        prepare_torch(settings, world.device)
        seed_random_states(config["seed"])
        loggers = open_loggers(config, run_dir, world)
        parts = build_parts(
            config,
            settings,
            world,
            strategy,
            run_dir,
            stack,
            begins=checkpoint is None,
            initial=initial,
        )
        seed_random_states(config["seed"], world.rank)

        world.on_main(
            lambda: keep_table(
                run_dir,
                parts.train.loader.table,
                resumes=checkpoint is not None,
                anyway=settings.resume_anyway,
            )
        )
        state = RunState()
        progress = make_progress(
            settings.progress, settings.max_epochs, settings.max_steps, is_main=world.is_main
        )
        recorder = Recorder(
            parts,
            state,
            world,
            settings=settings,
            run_dir=run_dir,
            loggers=loggers,
            progress=progress,
            draw_batch=partial(draw_first_batch, config, parts),
        )
        stack.enter_context(recorder)
        stack.callback(parts.hooks.close)
        stack.callback(progress.close)
        if checkpoint is not None:
            recorder.restore(checkpoint)
            if state.closed and state.reached(settings):
                _log.info(
                    "the run is done: it has %d epochs, %d steps; to go on longer type "
                    "trainer.max_epochs=%d", state.epoch, state.step, 2 * state.epoch
                )  # fmt: skip
        world.on_main(recorder.begin)
        # A checkpoint that is refused leaves the run's folder as it is.
        classes = task_classes(config, parts.train.loader.classes_of)
        world.on_main(lambda: keep_classes(run_dir, classes))
        if folder is not None:
            (run_dir / SUMMARY).unlink(missing_ok=True)
            folder.write_config(config)
            report_start(parts, world, named, config)
        interrupt = stack.enter_context(Interrupt(speaks=world.is_main))
        done = fit(
            parts,
            state,
            recorder,
            settings=settings,
            world=world,
            interrupted=lambda: interrupt.requested or (folder is not None and folder.is_lost),
        )
        progress.close()
        results = _results(parts, state, recorder, world, settings, run_dir=named)
        times = {"train": recorder.meter.summary(), "val": recorder.val_meter.summary()}
        if world.is_main:
            if done:
                recorder.draw_confusion()
                kept = {**results, "times": times}
                write_whole(run_dir / SUMMARY, json.dumps(kept, indent=2) + "\n")
            report_end(results, times, interrupted=not done)
        if not done:
            # All ranks wait: when one has ended, torchrun ends the others.
            world.on_main(lambda: folder.flush(hurry=True) if folder is not None else None)
            raise SystemExit(interrupt.exit_code)
        if folder is not None:
            folder.flush(hurry=False)
    return results


def _claim_folder(
    config: Mapping[str, Any], world: World, strategy: Strategy, stack: ExitStack
) -> tuple[RunFolder | None, Path, str, dict[str, Any] | None]:
    """The run's folder (owned by rank 0), its path, its name, and the checkpoint to go on from."""
    owned: list[RunFolder] = []

    def claim() -> tuple[Path, str, Path | str | None]:
        folder = open_run_folder(config)
        owned.append(folder)
        stack.callback(folder.release)
        if not folder.resumes:
            return folder.path, str(folder), None
        checkpoint = folder.checkpoint
        if checkpoint is None:
            url = f"{folder.url}/checkpoints" if folder.url else None
            checkpoints = CheckpointFolder(folder.path / "checkpoints")
            newest = checkpoints.load_newest(url=url, empty=strategy.empty)
            checkpoint = newest[0] if newest else None
        return folder.path, str(folder), checkpoint

    path, name, checkpoint = world.on_main(claim)
    content = read_checkpoint(checkpoint, empty=strategy.empty) if checkpoint else None
    return (owned[0] if owned else None), path, name, content


def open_loggers(config: Mapping[str, Any], run_dir: Path, world: World) -> dict[str, Logger]:
    """Build the loggers by their names in the config, remote ones with threads; on rank 0 alone.

    Raises:
        ValueError: One lacks what it needs, such as a login; on every rank.
    """
    loggers: dict[str, Logger] = {}

    def build() -> None:
        names = [name for name, node in config["logger"].items() if node]
        for name, logger in zip(names, build_loggers(config, run_dir), strict=True):
            loggers[name] = RemoteLogger(logger, name) if logger.remote else logger

    world.on_main(build)
    return loggers


def draw_first_batch(config: Mapping[str, Any], parts: Parts, batch: Batch) -> NDArray[np.uint8]:
    """Draw a batch as the model gets it, with the names that the data has."""
    from penstock.pipeline.pictures.batch import draw_batch, names_in

    classes, points = names_in(config, parts.train.loader.classes_of)
    return draw_batch(batch, parts.train.transforms, classes, points)


def check_place(
    config: Mapping[str, Any], settings: TrainerSettings, shares: type[Strategy]
) -> None:
    """Refuse a run at a URL whose ranks would each write a part of a checkpoint."""
    for key, place in (("outputs", config["outputs"]), ("trainer.resume", settings.resume)):
        if shares.shards and is_url(str(place)):
            raise ValueError(
                f"{key} is {place}, and with trainer.strategy={settings.strategy} each rank writes "
                f"its part of a checkpoint; give a folder that all ranks see, or type "
                f"trainer.strategy=ddp"
            )


def check_compiler(settings: TrainerSettings) -> None:
    """Refuse to compile where there is nothing to compile with, before any data is read."""
    name = os.environ.get("CXX", "g++")
    if settings.compile and shutil.which(name) is None:
        raise ValueError(
            f"trainer.compile: torch.compile needs a C++ compiler, and there is no {name}; install "
            f"one (apt-get install g++), or type trainer.compile=false"
        )


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


def _results(
    parts: Parts,
    state: RunState,
    recorder: Recorder,
    world: World,
    settings: TrainerSettings,
    *,
    run_dir: str,
) -> dict[str, Any]:
    loaders = [parts.train.loader, *([parts.val.loader] if parts.val is not None else [])]
    stats = [loader.stats for loader in loaders]
    bad, cut_texts, cut_tokens = world.sum(
        sum(each.bad_samples for each in stats),
        sum(each.cut_texts for each in stats),
        sum(each.cut_tokens for each in stats),
    )
    speed = recorder.meter.total()
    watched = monitored(settings, state.metrics or {})
    return {
        **{f"val/{name}": value for name, value in (state.metrics or {}).items()},
        **{f"best/{name}": value for name, value in (state.best_metrics or {}).items()},
        "monitor": watched,
        "monitor_mode": settings.monitor_mode or better(watched),
        "best_epoch": state.best_epoch,
        "epoch": state.epoch,
        "step": state.step,
        **speed,
        "bad_samples": int(bad),
        "cut_texts": int(cut_texts),
        "cut_tokens": int(cut_tokens),
        "run_dir": run_dir,
    }

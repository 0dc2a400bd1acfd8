"""Write the figures and checkpoints of a run while it goes, and read them back."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import Logger
from penstock.core.files import writing
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import confused_names
from penstock.pipeline.loader.state import united
from penstock.pipeline.training.checkpoint import (
    CheckpointFolder,
    RunState,
    load_weights,
    random_states,
    restore_random_states,
)
from penstock.pipeline.training.distributed.shards import write_shards
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.given_values import load_with_given
from penstock.pipeline.training.parts import Parts, num_batches_of
from penstock.pipeline.training.report import Meter, Progress, duration, epoch_of
from penstock.pipeline.training.settings import TrainerSettings
from penstock.pipeline.training.validation import class_tasks

_log = logging.getLogger(__name__)

_MOST_DRAWN = 100  # classes; in a picture of more nothing can be read
_ANEW = "or start anew with trainer.resume=null"
_REMEDY = "free some space, and trainer.resume=auto goes on from the last checkpoint, if any"


class Recorder:
    """Writes figures and checkpoints on rank 0, and reads them back on every rank.

    Args:
        parts: What training works on.
        state: Where the run stands.
        world: The ranks.
        settings: The trainer's settings.
        run_dir: The run's folder.
        loggers: By their names in the config; empty on ranks other than 0.
        progress: Where the user sees how it goes.
        draw_batch: Draws a training batch as the model gets it.

    Attributes:
        by_class: Whether validations are to give figures by class, for pictures of them; the
            same on every rank.
    """

    def __init__(
        self,
        parts: Parts,
        state: RunState,
        world: World,
        *,
        settings: TrainerSettings,
        run_dir: Path,
        loggers: Mapping[str, Logger],
        progress: Progress,
        draw_batch: Callable[[Batch], NDArray[np.uint8]],
    ) -> None:
        self.meter = Meter(parts.train)
        self.val_meter = Meter(parts.train if parts.val is None else parts.val)
        self.run_dir = run_dir
        self.checkpoints = CheckpointFolder(run_dir / "checkpoints")
        self._parts = parts
        self._state = state
        self._world = world
        self._settings = settings
        self._loggers = loggers
        self._progress = progress
        self._saved_s = time.monotonic()
        self._began_s = self._saved_s
        self._loss: float | None = None
        self._draw_batch = draw_batch
        self._pictures = [logger.picture for logger in loggers.values() if logger.draws]
        self._classes = class_tasks(parts.task)
        few = all(each.num_classes <= _MOST_DRAWN for each in self._classes.values())
        self.by_class = few and world.on_main(lambda: bool(self._pictures))
        self._confusion: dict[str, Any] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close the loggers, and tell them first if the run is not done."""
        for name, logger in self._loggers.items():
            with self._writing(name):
                if error is not None:
                    logger.failed()
                logger.close()

    def begin(self) -> None:
        """Have the loggers open the run.

        Raises:
            ValueError: One cannot.
        """
        for logger in self._loggers.values():
            logger.begin()

    def log(
        self, values: Mapping[str, float], *, timed: bool = False, validated: bool = False
    ) -> None:
        """Give the loggers a row for the present step.

        Args:
            values: Figures that are the same in every run.
            timed: Add where training's time went since the last such row, as ``time/<name>``.
            validated: Add where the validation's time went, as ``time/val_<name>``.
        """
        if "train/loss" in values:
            self._loss = values["train/loss"]
        row: dict[str, float] = {"epoch": self._state.epoch, **values}
        if timed:
            lap = {**self.meter.lap(), **self.meter.counts()}
            row |= {f"time/{name}": value for name, value in lap.items()}
        if validated:
            row |= {f"time/val_{name}": value for name, value in self.val_meter.lap().items()}
        for name, logger in self._loggers.items():
            with self._writing(name):
                logger.log(self._state.step, row)

    def batch_taken(self, batch: Batch) -> None:
        """Give the loggers that take pictures one of the run's first batch."""
        if not self._pictures or self._state.step:
            return
        try:
            picture = self._draw_batch(batch)
        except Exception as error:  # training does without the picture of whatever a batch may be
            said = " ".join(f"{type(error).__name__}: {error}".split())
            _log.warning("the first batch is not drawn for the loggers: %s", said)
            return
        self._give("first_batch", picture)

    def numbers(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Take what a validation found by class apart, and keep it for the end of the run."""
        self._confusion = {n: v for n, v in found.items() if n.rpartition("/")[2] == "confusion"}
        return {name: value for name, value in found.items() if isinstance(value, float)}

    def draw_confusion(self) -> None:
        """Give the loggers that take pictures the confusion matrices of the last validation."""
        if not self._pictures:
            return
        from penstock.pipeline.pictures.confusion import draw_confusion

        for name, matrix in self._confusion.items():
            task = self._classes[name.rpartition("/")[0]]
            self._give(f"val/{name}", draw_confusion(matrix, confused_names(task, matrix)))

    def _give(self, name: str, picture: NDArray[np.uint8]) -> None:
        for take in self._pictures:
            take(self._state.step, name, picture)

    def stepped(self, samples: int) -> None:
        """A step over so many valid samples is done."""
        self.meter.step(samples)
        figures = self.meter.total()
        if self._loss is not None:
            figures["loss"] = self._loss
        limit = self._parts.train.loader.stats.limit
        self._progress.step(self._state, self._parts.num_batches, figures, limit)

    def validating(self, done: int) -> None:
        """So many batches of a validation are done."""
        assert self._parts.val is not None
        total, limit = num_batches_of(self._parts.val.loader), self._settings.val_batches
        total = total if limit is None or total is None else min(limit, total)
        self._progress.validating(self._state, done, total)

    def epoch_began(self) -> None:
        """An epoch, or what is left of it, begins."""
        self._began_s = time.monotonic()

    def epoch_ended(self, metrics: Mapping[str, float], *, best: bool) -> None:
        """Tell the user what came out of an epoch.

        Args:
            metrics: Figures of its validation, if it was validated.
            best: Whether it is the best so far.
        """
        state, said = self._state, [epoch_of(self._state, self._settings.max_epochs)]
        if state.epoch_steps:
            said.append(f"train loss {state.epoch_loss / state.epoch_steps:.4g}")
        said += [
            f"{'val ' * (name == 'loss')}{name} {value:.4g}" for name, value in metrics.items()
        ]
        said += [f"lr {self._parts.lr(state.step):.3g}", duration(time.monotonic() - self._began_s)]
        _log.info("%s", "  ".join([*said, "best"] if best else said))

    def save_due(self) -> bool:
        """Whether a checkpoint within the epoch is due after the step about to be made."""
        if not self._settings.save:
            return False
        steps, seconds = self._settings.checkpoint_every, self._settings.checkpoint_seconds
        by_steps = steps is not None and (self._state.step + 1) % steps == 0
        by_time = seconds is not None and time.monotonic() - self._saved_s >= seconds
        # The clocks of the ranks differ: rank 0's counts.
        return by_steps or (by_time and self._world.is_main)

    def save(self, *, best: bool = False) -> None:
        """Write a checkpoint; all ranks call this."""
        if not self._settings.save:
            return
        gathered = self._world.gather((random_states(), self._parts.train.state_dict()))
        safely = partial(writing, self.checkpoints.last, remedy=_REMEDY)

        def write() -> None:
            with safely():
                self.checkpoints.save(content, best=best)

        with self._parts.hooks.evaluating():
            content = self._content(*zip(*gathered, strict=True))
            if self._parts.strategy.shards:
                with safely():
                    content = write_shards(content, self.checkpoints.folder, self._world)
            self._world.on_main(write)
        if self._parts.held is not None:
            loader = self._parts.train.loader
            self._parts.held(gathered[self._world.rank][1]["next_batch"] * loader.batch_size)
        self._saved_s = time.monotonic()

    def _content(self, random: Sequence[Any], loaders: Sequence[Any]) -> dict[str, Any]:
        parts = self._parts
        return {
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
            },
            "world_size": self._world.size,
            "num_threads": torch.get_num_threads(),
            "state": self._state.state_dict(),
            "model": parts.model.state_dict(),
            "given": parts.given.state_dict(),
            "trained": self._trained(),
            "optimizer": parts.optimizer.state_dict(),
            "scheduler": parts.scheduler.state_dict() if parts.scheduler else None,
            "scaler": parts.scaler.state_dict(),
            "loader": united(loaders),
            "callbacks": parts.hooks.state_dict(),
            "loggers": {name: logger.state_dict() for name, logger in self._loggers.items()},
            "random": list(random),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Set everything to where a checkpoint stands.

        Raises:
            ValueError: The model, the optimizer or the data are not those of the checkpoint.
        """
        parts = self._parts
        if parts.strategy.shards and "shards" not in content:
            raise ValueError(
                "checkpoint: it was written with trainer.strategy=ddp, this run has fsdp; type "
                "trainer.strategy=ddp, or begin a run with its weights by trainer.init_from="
                f"{self.run_dir}"
            )
        self._state.load_state_dict(content["state"])
        load_weights(
            parts.model,
            content["model"],
            where="checkpoint: its model is not this run's",
            remedy=f"give the same values of model, {_ANEW}",
        )
        parts.hooks.load_state_dict(content.get("callbacks", {}))
        self._restore_optimizer(content)
        parts.scaler.load_state_dict(content["scaler"])
        anyway = self._settings.resume_anyway
        parts.train.load_state_dict(content["loader"], anyway=anyway)
        for name, logger in self._loggers.items():
            if name in content["loggers"]:
                logger.load_state_dict(content["loggers"][name])
        self._restore_random(content)

    def _trained(self) -> list[list[str]]:
        """Names of the parameters in each group of the optimizer."""
        names = {id(each): name for name, each in self._parts.model.named_parameters()}
        groups = self._parts.optimizer.param_groups
        return [[names.get(id(each), "") for each in group["params"]] for group in groups]

    def _restore_optimizer(self, content: Mapping[str, Any]) -> None:
        parts, state = self._parts, self._state
        if (parts.scheduler is None) != (content["scheduler"] is None):
            raise ValueError(
                f"checkpoint: it {'has a' if parts.scheduler is None else 'has no'} scheduler, "
                f"this run {'has none' if parts.scheduler is None else 'has one'}; give the same "
                f"scheduler"
            )
        then, now = content.get("trained", self._trained()), self._trained()
        if then != now:
            was, has = ({name for group in groups for name in group} for groups in (then, now))
            what = "in another group of the optimizer"
            if moved := sorted(was ^ has):
                what = "not trained in this run" if moved[0] in was else "trained in this run alone"
            raise ValueError(
                f"checkpoint: {(moved or now[0])[0]} is {what}; give the same trainer.freeze and "
                f"optimizer.groups, or begin a run with its weights by trainer.init_from="
                f"{self.run_dir}"
            )
        steps = max(0, state.step - parts.warmup.steps)
        try:
            load_with_given(
                parts.optimizer,
                parts.scheduler,
                content,
                parts.given,
                count=steps if parts.interval == "step" else state.epoch,
            )
        except (RuntimeError, KeyError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"checkpoint: its optimizer or its scheduler does not fit this run's: {reason}; "
                f"give the same, {_ANEW}"
            ) from error

    def _restore_random(self, content: Mapping[str, Any]) -> None:
        """Random states and threads, or a line on why the weights will not be bit-identical."""
        if content["world_size"] == self._world.size:
            restore_random_states(content["random"][self._world.rank])
        else:
            _log.info(
                "the checkpoint is of %d ranks, this run has %d: the batches go on exactly, the "
                "weights will differ in rounding",
                content["world_size"],
                self._world.size,
            )
        if self._settings.num_threads is None:
            torch.set_num_threads(content["num_threads"])
        elif self._settings.num_threads != content["num_threads"]:
            _log.warning(
                "the checkpoint was made with %d torch threads, trainer.num_threads is %d: the "
                "weights will differ in rounding",
                content["num_threads"],
                self._settings.num_threads,
            )
        if content["versions"]["torch"] != str(torch.__version__):
            _log.warning(
                "the checkpoint was made with torch %s, this is %s: the weights may differ in "
                "rounding",
                content["versions"]["torch"],
                torch.__version__,
            )

    def _writing(self, logger: str) -> AbstractContextManager[None]:
        return writing(f"{self.run_dir} (logger {logger})", remedy=_REMEDY)

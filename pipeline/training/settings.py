"""Settings of a training run, as `trainer` in a config holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.registry import register


@register("settings", "trainer")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How long to train, how precisely, and what to keep.

    Attributes:
        max_epochs: Epochs to train; None for no limit (then `max_steps` must be given).
        max_steps: Optimizer steps to train; whichever limit comes first ends the run.
        device: `auto` takes CUDA where there is one; or `cpu`, `cuda`, `cuda:1`.
        amp: Autocast precision: `off`, `bf16`, or `fp16` (which scales the loss, CUDA only).
        channels_last: Hold the model's weights and the images channels last in memory.
        accumulate: Batches whose gradients are added up to one optimizer step.
        clip_norm: Largest gradient norm, in the loss's own scale; None: not clipped.
        scheduler_interval: Whether the scheduler counts optimizer steps or epochs.
        validate_every: Epochs between validations; the last epoch is always validated, 0: never.
        monitor: The figure that decides which checkpoint is the best: a metric of the task or
            `loss`; None takes `accuracy` where the task has it, else `loss`.
        monitor_mode: Whether more or less of it is better; None: less for losses, else more.
        checkpoint_every: Optimizer steps between checkpoints within an epoch; None: none.
        checkpoint_seconds: Seconds between checkpoints within an epoch; None: none. Every end of
            an epoch is one in any case.
        save: Whether checkpoints are written at all.
        log_every: Optimizer steps between lines in the metrics.
        resume: None starts anew; `auto` goes on with the newest run of an equal config that is
            not finished; else a run's folder or a checkpoint file. Values of `optimizer` and
            `scheduler` that were changed win over the checkpoint's.
        resume_anyway: Resume although data, sampler or pixels differ from the checkpoint's.
        on_nonfinite: At a loss that is not finite: `stop` the run, or `skip` the step (at most
            10 in a row).
        limit_train_batches: Train batches of an epoch, the others are left out; None: all.
        limit_val_batches: Validation batches, the others are left out; None: all.
        overfit_batches: Train again and again on the first so many batches, exactly as epoch 0
            draws them, and take these for validation too; None: off.
        deterministic: Use only torch operations that give the same bits each time.
        num_threads: torch threads of this process; None leaves torch's choice.
        timeout_s: Seconds after which a rank that waits for the others gives up.
        progress: `auto` shows a bar on a terminal and lines elsewhere; or `bar`, `lines`, `off`.
    """

    max_epochs: int | None = 10
    max_steps: int | None = None
    device: str = "auto"
    amp: Literal["off", "bf16", "fp16"] = "off"
    channels_last: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    scheduler_interval: Literal["step", "epoch"] = "step"
    validate_every: int = 1
    monitor: str | None = None
    monitor_mode: Literal["max", "min"] | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = 300.0
    save: bool = True
    log_every: int = 10
    resume: str | None = None
    resume_anyway: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"
    limit_train_batches: int | None = None
    limit_val_batches: int | None = None
    overfit_batches: int | None = None
    deterministic: bool = True
    num_threads: int | None = None
    timeout_s: float = 600.0
    progress: Literal["auto", "bar", "lines", "off"] = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError for a value out of range."""
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("trainer: neither max_epochs nor max_steps is set; give one")
        for name in (
            "max_epochs max_steps accumulate checkpoint_every log_every limit_train_batches "
            "overfit_batches num_threads"
        ).split():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"trainer.{name} is {value}, expected at least 1")
        for name in ("validate_every", "limit_val_batches"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"trainer.{name} is {value}, expected at least 0")
        for name in ("clip_norm", "checkpoint_seconds", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"trainer.{name} is {value}, expected more than 0")

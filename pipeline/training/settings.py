"""Declare the settings of a training run, as `trainer` in a config holds them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from penstock.core.registry import checks, find, register, value_at
from penstock.core.user_errors import Problem
from penstock.datasets.files.access import is_object_store, is_url
from penstock.pipeline.config.errors import nearest


@register("settings", "trainer")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How long to train, how precisely, and what to keep.

    Attributes:
        max_epochs: Epochs to train; None for no limit (then `max_steps` must be given).
        max_steps: Optimizer steps to train; whichever limit comes first ends the run.
        strategy: How ranks share the model: each has all of it (`ddp`), or a part of each weight
            (`fsdp`), for models that do not fit otherwise.
        device: `auto` takes CUDA where there is one; or `cpu`, `cuda`, `cuda:1`.
        amp: Autocast precision: `off` (false, as YAML reads it), `bf16`, or `fp16` (which scales
            the loss, CUDA only).
        channels_last: Hold the model's weights and the images channels last in memory.
        compile: Compile the model by ``torch.compile``, true or one of its modes; it pays in long
            runs, and each new shape of a batch takes its time once.
        accumulate: Batches whose gradients are added up to one optimizer step.
        clip_norm: Largest gradient norm, in the loss's own scale; None: not clipped.
        scheduler_interval: Whether the scheduler counts optimizer steps or epochs; None: what it
            counts by itself.
        validate_every: Epochs between validations; the last epoch is always validated, 0: never.
        monitor: The figure that decides which checkpoint is the best: a metric of the task or
            `loss`; None takes `accuracy` where the task has it, else `loss`.
        monitor_mode: Whether more or less of it is better; None: less for losses, else more.
        checkpoint_every: Optimizer steps between checkpoints within an epoch; None: none.
        checkpoint_seconds: Seconds between checkpoints within an epoch; None: none. Every end of
            an epoch is one in any case.
        save: Whether checkpoints are written at all.
        log_every: Optimizer steps between lines in the metrics.
        resume: None starts anew. `auto` resumes the newest run of an equal config that can go on,
            whatever its length, logging, engine or workers; with `run.name` the run of that name.
            If configs differ, it names the first differing key. Or give a run's folder, its
            `run.name`, a checkpoint, or the URL of one. Changed values of `optimizer` and
            `scheduler` then win over the checkpoint's; a schedule that depends on the length goes
            on where the schedule of the new length stands.
        resume_anyway: Resume although data, sampler or pixels differ from the checkpoint's.
        init_from: Weights to begin with, where a run begins: a run's folder or its `run.name`, a
            checkpoint, a file of a state dict or ``.safetensors``, or the URL of one. What fits by
            name and shape is taken, and it is said what does not.
        freeze: Patterns of parameters that are not trained, such as ``backbone`` for all of a
            module or ``*.bias``; running figures of norms that are frozen stay as they are.
        on_nonfinite: If the loss or a gradient is infinite or NaN, `stop` the run, or `skip` the
            step (at most 10 in a row). With `amp=fp16` the loss scaler skips bad gradients;
            a loss scale below 2**-10 stops the run.
        limit_train_batches: Train batches of an epoch, the others are left out; None: all.
        limit_val_batches: Validation batches, of records that are spread evenly over all (of a
            stream the first); None: all.
        overfit_batches: Train again and again on the first so many batches, exactly as epoch 0
            draws them, and take these for validation too; None: off.
        deterministic: Use only torch operations that give the same bits each time.
        num_threads: torch threads of this process; None leaves torch's choice.
        timeout_s: Seconds after which a rank that waits for the others gives up.
        progress: `auto` shows a bar on a terminal and lines elsewhere; or `bar`, `lines`, `off`.
    """

    max_epochs: Annotated[int, Ge(1)] | None = 10
    max_steps: Annotated[int, Ge(1)] | None = None
    strategy: Literal["ddp", "fsdp"] = "ddp"
    device: str = "auto"
    amp: Literal["off", "bf16", "fp16", False] = "off"
    channels_last: bool = False
    compile: (
        bool | Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    ) = False
    accumulate: Annotated[int, Ge(1)] = 1
    clip_norm: Annotated[float, Gt(0)] | None = None
    scheduler_interval: Literal["step", "epoch"] | None = None
    validate_every: Annotated[int, Ge(0)] = 1
    monitor: str | None = None
    monitor_mode: Literal["max", "min"] | None = None
    checkpoint_every: Annotated[int, Ge(1)] | None = None
    checkpoint_seconds: Annotated[float, Gt(0)] | None = 300.0
    save: bool = True
    log_every: Annotated[int, Ge(1)] = 10
    resume: str | None = None
    resume_anyway: bool = False
    init_from: str | None = None
    freeze: list[str] | None = None
    on_nonfinite: Literal["stop", "skip"] = "stop"
    limit_train_batches: Annotated[int, Ge(1)] | None = None
    limit_val_batches: Annotated[int, Ge(0)] | None = None
    overfit_batches: Annotated[int, Ge(1)] | None = None
    deterministic: bool = True
    num_threads: Annotated[int, Ge(1)] | None = None
    timeout_s: Annotated[float, Gt(0)] = 600.0
    progress: Literal["auto", "bar", "lines", "off"] = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError where nothing ends the run, or settings do not go together."""
        if self.max_epochs is None and self.max_steps is None:
            raise ValueError("trainer: neither max_epochs nor max_steps is set; give one")
        if self.strategy == "fsdp" and (self.amp == "fp16" or self.channels_last):
            other = "amp=bf16" if self.amp == "fp16" else "channels_last=false"
            what = "amp=fp16" if self.amp == "fp16" else "channels_last=true"
            raise ValueError(
                f"trainer: strategy=fsdp does not go with {what}; type trainer.{other}"
            )

    @property
    def train_batches(self) -> int | None:
        """Batches of an epoch that are trained on at most; None: all."""
        return _least(self.limit_train_batches, self.overfit_batches)

    @property
    def val_batches(self) -> int | None:
        """Batches that are validated on at most; None: all."""
        return _least(self.limit_val_batches, self.overfit_batches)


@register("settings", "run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run is called, for `penstock runs` and to ask for it; it changes nothing else.

    Attributes:
        name: A name.
        tags: Words to find it by.
    """

    name: str | None = None
    tags: list[str] | None = None


_EMPTY = {"data_dir": ".", "outputs": ".", "trainer.resume": "null", "trainer.init_from": "null"}
"""Paths that cannot be empty, and the values to type instead."""
_LOCAL = (
    "data_dir dataset.cache.path dataset.decode.statistics predict.output evaluate.output "
    "export.output preview.path"
).split()
"""Paths that cannot be URLs."""


@checks("settings/trainer")
def check_folders(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse an empty path, which would be the working directory, and URLs for local files."""
    for key, instead in _EMPTY.items():
        if value_at(config, key) == "":
            text = "'' given, expected a path (is a variable unset?)"
            yield Problem(key, f"{text}; type {key}={instead}")
    for key in _LOCAL:
        if is_url(path := value_at(config, key)):
            yield Problem(key, f"{path!r} given, accepts a path of this machine; type {key}=<path>")
    if is_url(outputs := config["outputs"]) and not is_object_store(outputs):
        text = f"{outputs!r} given, accepts a folder, or the s3://, gs:// or az:// of a store"
        yield Problem("outputs", f"{text}; type outputs=outputs")


@checks("settings/trainer", needs=("callback",))
def check_validation(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse callbacks that watch a metric if validation is off."""
    on = {"validate_every": 1, "limit_val_batches": "null"}
    off = next((name for name in on if value_at(config, f"trainer.{name}") == 0), "")
    for name, node in config["callback"].items() if off else ():
        component = find(str(node.get("_target_"))) if node else None
        if component and "watched" in inspect.signature(component.target).parameters:
            text = f"{component.target_name} watches a metric that trainer.{off}=0 turns off"
            remedy = f"type trainer.{off}={on[off]}, or callback.{name}=null"
            yield Problem(f"callback.{name}", f"{text}; {remedy}")


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def monitored(settings: TrainerSettings, figures: Iterable[str]) -> str:
    """Name the figure that decides which checkpoint is the best, of those that a task gives.

    It may be given as the metrics file writes it (``val/loss``), or as others do (``val_loss``).
    """
    name = settings.monitor or ("accuracy" if "accuracy" in {*figures} else "loss")
    return name.removeprefix("val/").removeprefix("val_")


def no_such_figure(settings: TrainerSettings, figures: Iterable[str]) -> str:
    """Say that the task does not give what is to be watched, and what it gives."""
    name, known = monitored(settings, figures), sorted(figures)
    said = f"is {name!r}, and" if settings.monitor else "is not set, there is no loss, and"
    example = nearest(name, known) or known[0].replace("*", "0")
    remedy = f"type trainer.monitor={example}"
    return f"trainer.monitor {said} the task gives {', '.join(known)}; {remedy}"

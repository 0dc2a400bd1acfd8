"""Train: the loop, which reads from top to bottom."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim.lr_scheduler import ReduceLROnPlateau

from penstock.core.sample import Batch
from penstock.pipeline.learning.inputs import describe_inputs
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.schedulers.units import better
from penstock.pipeline.training.checkpoint import RunState
from penstock.pipeline.training.distributed.strategy import Strategy
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.parts import Parts
from penstock.pipeline.training.recorder import Recorder
from penstock.pipeline.training.settings import TrainerSettings, monitored, no_such_figure
from penstock.pipeline.training.validation import validate, warn_of_sizes

_log = logging.getLogger(__name__)
_SKIPS_IN_A_ROW = 10
_LEAST_SCALE = 2.0**-_SKIPS_IN_A_ROW
"""Each skip of fp16's loss scaler halves the scale, which has no use below 1."""


def fit(
    parts: Parts,
    state: RunState,
    recorder: Recorder,
    *,
    settings: TrainerSettings,
    world: World,
    interrupted: Callable[[], bool],
) -> bool:
    """Train from where `state` stands until the settings' limits are reached.

    Args:
        parts: What is trained, and on what.
        state: Where the run stands; moved on.
        recorder: Takes figures and checkpoints.
        settings: The trainer's settings.
        world: The ranks.
        interrupted: Whether this rank was asked to stop.

    Returns:
        True when done; False when it was interrupted, after a checkpoint.

    Raises:
        ValueError: The loss or a gradient is not finite, and `on_nonfinite` says to stop; or
            the loss scale of fp16 falls without end.
    """
    train, scaler = parts.train, parts.scaler
    optimizer, scheduler, hooks = parts.optimizer, parts.scheduler, parts.hooks
    model, apart = parts.shared, parts.strategy.apart
    if settings.compile:  # in place: the names of the weights stay as they are
        model.compile(mode=None if settings.compile is True else settings.compile)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    precision = precision_of(settings, world.device)
    # Reading a value waits for the device. Where that costs time, the loop reads the loss and the
    # count of bad gradients only before it writes metrics or a checkpoint.
    checks_each = world.device.type == "cpu" or settings.on_nonfinite == "skip"
    window = torch.tensor([state.window_loss, 0], dtype=torch.float64, device=world.device)
    skipped = 0
    told = not world.is_main
    compares_sizes = world.is_main

    while not (state.closed and (state.reached(settings) or hooks.stop())):
        recorder.epoch_began()
        train.set_epoch(state.epoch if settings.overfit_batches is None else 0)
        model.train()
        for norm in parts.still:
            norm.eval()
        recorder.meter.start()
        for group in _groups(train, parts.num_batches, state, settings):
            # A row weighs the same wherever it is: ranks and accumulated batches count by
            # their valid rows. A rank that has none still takes part, with a weight of 0.
            loss = torch.zeros((), dtype=torch.float64, device=world.device)
            count = rows = 0
            expected = valid = stop = save = 0.0
            for batch, is_last in group:
                if not told:
                    _log.info("input %s", describe_inputs(batch))
                    recorder.batch_taken(batch)
                    told = True
                count, rows = count + 1, rows + batch["num_valid"]
                if is_last:
                    # One sum over the ranks settles what this step weighs, and what follows it.
                    valid, stop, save = world.sum(
                        rows, float(interrupted()), float(recorder.save_due())
                    )
                if count == 1:  # the rows of later batches are not known yet
                    expected = valid if is_last else settings.accumulate * world.sum(rows)[0]
                # Gradients stay with each rank until the last is added, and are averaged then.
                with nullcontext() if is_last else apart(model):
                    with precision():
                        batch_loss = total_loss(parts.task, model(batch), batch)
                    share = batch_loss * (world.size * batch["num_valid"] / max(expected, 1))
                    scaler.scale(share).backward()
                loss += share.detach() / world.size
                del batch
            if valid and valid != expected:
                _scale_gradients(parameters, max(expected, 1) / valid)
                loss *= max(expected, 1) / valid
            # The scaler of fp16 skips steps by itself, to find its scale.
            checks_gradients = valid and not scaler.is_enabled()
            bad = torch.zeros_like(loss)
            if checks_gradients:
                bad += _any_nonfinite(parameters, parts.strategy)
            # With sharded gradients only one rank may have the bad one: all ranks sum the flag.
            found = world.sum_tensor(torch.stack([loss, bad]))

            lr = parts.lr(state.step)
            if checks_each and (cause := _nonfinite(found)):
                skipped += 1
                _refuse_or_skip(cause, skipped, state, settings)
            elif valid:
                skipped = 0
                scaler.unscale_(optimizer)
                if settings.clip_norm is not None:
                    clip_grad_norm_(parameters, settings.clip_norm)
                with parts.warmup.at(state.step, optimizer):
                    scaler.step(optimizer)
                scaler.update()
                if scaler.is_enabled() and (checks_each or not state.step % settings.log_every):
                    _check_scale(scaler.get_scale(), state)
                window += found
                state.window_steps += 1
            hooks.stepped(state.step + 1)
            optimizer.zero_grad(set_to_none=True)
            if scheduler and parts.interval == "step" and state.step >= parts.warmup.steps:
                scheduler.step()

            state.step += 1
            state.batch += count
            state.samples += int(valid)
            state.image_size = train.image_size
            state.closed = False
            recorder.stepped(int(valid))
            if state.step % settings.log_every == 0:
                recorder.log({**_close_window(window, state), "lr": lr}, timed=True)
            if stop or save:
                state.window_loss = _finite_loss(window, state)
                recorder.save()
                if stop:
                    return False
                recorder.meter.start()

        if parts.num_batches and not state.batch:
            raise ValueError(f"sampler: epoch {state.epoch} has no batch; let it give some")
        if not state.batch:
            raise ValueError(
                "dataset: an epoch of the stream has no batch: it has no record, or with "
                "loader.drop_last=true fewer than loader.batch_size; lower that, or set "
                "loader.drop_last=false"
            )
        ended = state.batch == parts.num_batches or not state.steps_reached(settings)
        scores: dict[str, Any] | None = {}
        if parts.val is not None and _validates(ended, state, settings):
            with hooks.evaluating():
                scores = validate(
                    parts.model,
                    parts.task,
                    parts.val,
                    world,
                    precision=precision,
                    limit=settings.val_batches,
                    interrupted=interrupted,
                    meter=recorder.val_meter,
                    by_class=recorder.by_class,
                    progress=recorder.validating,
                )
            if compares_sizes and scores is not None:
                warn_of_sizes(state.image_size, parts.val.image_size, parts.eval_steps)
                compares_sizes = False
        if scores is None:
            state.window_loss = _finite_loss(window, state)
            recorder.save()
            return False

        metrics, best = recorder.numbers(scores), False
        figures = _close_window(window, state)
        if metrics:
            score, higher = _score(metrics, settings)
            best = state.is_better(score, higher=higher)
            if best:
                state.best, state.best_epoch, state.best_metrics = score, state.epoch + 1, metrics
            state.metrics = metrics
            figures |= {f"val/{name}": value for name, value in metrics.items()}
        recorder.epoch_ended(metrics, best=best)
        if figures:
            recorder.log({**figures, "lr": parts.lr(state.step)}, validated=bool(metrics))
        if ended:
            # Not what was validated only since the run ended there: it may go on longer.
            due = settings.validate_every and (state.epoch + 1) % settings.validate_every == 0
            watched = metrics if due else {}
            if scheduler and parts.interval == "epoch":
                _step_epoch(scheduler, watched, settings)
            hooks.epoch_ended(watched)
            state.epoch, state.batch = state.epoch + 1, 0
        state.window_loss, state.epoch_loss, state.epoch_steps = 0.0, 0.0, 0
        state.closed = True
        recorder.save(best=best)
    return True


def _groups(
    train: Iterable[Batch], num_batches: int | None, state: RunState, settings: TrainerSettings
) -> Iterator[Iterator[tuple[Batch, bool]]]:
    """Yield the batches of each optimizer step, to the end of the epoch or of the run."""
    if num_batches is not None and state.batch >= num_batches:
        return  # a checkpoint after the last batch, before the epoch was closed
    limit = settings.train_batches
    batches = islice(iter(train), None if limit is None else limit - state.batch)
    while not state.steps_reached(settings) and (first := next(batches, None)) is not None:
        held = [first]
        del first  # the loop alone decides how long a batch lives
        yield _group(held, batches, settings.accumulate)


def _group(held: list[Batch], batches: Iterator[Batch], most: int) -> Iterator[tuple[Batch, bool]]:
    """Yield batches one by one, and whether each is the last of its step."""
    for number in range(1, most + 1):
        following = next(batches, None) if number < most else None
        yield held.pop(), following is None
        if following is None:
            return
        held.append(following)


def precision_of(
    settings: TrainerSettings, device: torch.device
) -> Callable[[], AbstractContextManager[object]]:
    """Makes the autocast context."""
    dtype = torch.float16 if settings.amp == "fp16" else torch.bfloat16
    return partial(
        torch.autocast, device.type, dtype=dtype, enabled=settings.amp in ("bf16", "fp16")
    )


def _close_window(window: torch.Tensor, state: RunState) -> dict[str, float]:
    """Return the mean loss since the last line in the metrics, and begin the next window."""
    if not state.window_steps:
        return {}
    loss = _finite_loss(window, state)
    mean = loss / state.window_steps
    state.epoch_loss += loss
    state.epoch_steps += state.window_steps
    window.zero_()
    state.window_steps = 0
    return {"train/loss": mean}


def _any_nonfinite(parameters: Sequence[torch.Tensor], strategy: Strategy) -> torch.Tensor:
    """Return 1 where one of this rank's gradients is infinite or NaN, else 0, on the device."""
    own = [strategy.local(p.grad) for p in parameters if p.grad is not None]
    dense = [g.coalesce().values() if g.is_sparse else g for g in own]
    largest = get_total_norm([g for g in dense if g.numel()], norm_type=math.inf)
    return ~torch.isfinite(largest)


def _scale_gradients(parameters: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply all gradients, which were added up for another number of rows."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def _nonfinite(found: torch.Tensor) -> str | None:
    """Name what is not finite, given a loss and a count of bad gradients; None for neither."""
    loss, bad = found.tolist()
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    return f"the loss is {loss:.4g} and its gradients are not finite" if bad else None


def _finite_loss(window: torch.Tensor, state: RunState) -> float:
    """Return the loss of a window. Raise before a model that is lost overwrites a good one."""
    if cause := _nonfinite(window):
        raise ValueError(_stopped(cause, state))
    return float(window[0])


def _refuse_or_skip(cause: str, skipped: int, state: RunState, settings: TrainerSettings) -> None:
    if settings.on_nonfinite == "stop":
        raise ValueError(_stopped(cause, state))
    if skipped > _SKIPS_IN_A_ROW:
        raise ValueError(f"{_stopped(cause, state)}; {skipped} steps in a row")
    _log.warning("step %d: %s; the step is skipped", state.step + 1, cause)


def _stopped(cause: str, state: RunState) -> str:
    return (
        f"{cause} at or before step {state.step + 1} (epoch {state.epoch + 1}, batch "
        f"{state.batch + 1}); lower optimizer.lr, set trainer.clip_norm=1, or skip such steps "
        f"with trainer.on_nonfinite=skip"
    )


def _check_scale(scale: float, state: RunState) -> None:
    """Stop a run whose gradients stay infinite or NaN however far fp16 lowers its loss scale."""
    if scale < _LEAST_SCALE:
        raise ValueError(
            f"trainer.amp=fp16: gradients were not finite again and again, and the loss scale fell "
            f"to {scale:.2g} at step {state.step + 1}; type trainer.amp=bf16, or trainer.amp=off, "
            f"with which trainer.on_nonfinite names the first bad step"
        )


def _validates(ended: bool, state: RunState, settings: TrainerSettings) -> bool:
    if not settings.validate_every or settings.limit_val_batches == 0:
        return False
    last = state.steps_reached(settings) or state.epoch + 1 == settings.max_epochs
    return last or (ended and (state.epoch + 1) % settings.validate_every == 0)


def _score(metrics: dict[str, float], settings: TrainerSettings) -> tuple[float, bool]:
    """The figure that is watched, and whether more of it is better."""
    name = monitored(settings, metrics)
    if name not in metrics:
        raise ValueError(no_such_figure(settings, metrics))
    return metrics[name], (settings.monitor_mode or better(name)) == "max"


def _step_epoch(scheduler: Any, metrics: dict[str, float], settings: TrainerSettings) -> None:
    with warnings.catch_warnings():
        # Right after a resume the optimizer has made no step in this process, and torch warns.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        if not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()
        elif metrics:
            scheduler.step(_score(metrics, settings)[0])

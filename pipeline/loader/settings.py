"""Settings of the loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from penstock.core.processes import default_workers
from penstock.core.registry import register
from penstock.pipeline.loader.executors import executor_named

_LONGEST_S = 1e7
"""Some system calls refuse longer waits."""
_MOST = 1024
"""Bound of workers and of batches ahead; more exhaust threads or memory."""


@register("settings", "loader")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Sizes of batches, workers, and actions on bad samples.

    Attributes:
        engine: Executor of batches: ``threads``, ``processes`` (dead or hanging workers are
            replaced), ``ray`` (tasks of a Ray cluster), ``torch`` (torch's DataLoader) or
            ``inline`` (this process). null: ``inline`` without workers, ``threads`` for batches
            made as columns, else ``processes``.
        batch_size: Samples in a batch over all ranks; the maximum if the sampler cuts batches.
        eval_batch_size: Batch size of evaluation; null for `batch_size`.
        num_workers: Workers per rank; 0 computes in this process. ``auto``: one for each core of
            this rank's share by affinity and quota, 32 at most.
        resources: For ``ray``, resources of each batch: ``{CPU: 2}``, or ``{decoders: 1}`` for a
            resource of your cluster. null: one core.
        affinity: List of cores for workers, threads included; ``none`` for the trainer's cores. The
            trainer itself is not bound.
        nice: Niceness of workers, 0 to 19: higher values leave more CPU time to the trainer. Ray
            ignores it, and `affinity`.
        prefetch_factor: Batches that each worker computes ahead. Small batches without work per
            sample come in bundles of up to 16 batches or 6 MB; a bundle counts as one. ``torch``
            does not bundle.
        pin_memory: Write batches to page-locked memory, which an accelerator reads by itself;
            ``auto``: if the loader feeds one.
        persistent_workers: Keep workers between epochs.
        across_epochs: In training, compute the first batches of the next epoch at the end of this
            one, so that workers never idle. The batches use memory during evaluation. Needs
            `persistent_workers`.
        timeout_s: Seconds to wait for a batch before an error, or before a hanging worker process
            is replaced; up to 10 million. A record that hangs alone for a minute is quarantined.
        multiprocessing_context: For ``torch``, start method of workers: ``forkserver`` (null) or
            ``spawn``.
        drop_last: Tail of the epoch: true drops it, false keeps a short batch, ``pad`` adds rows
            marked invalid. Samplers that cut batches ignore it.
        on_error: Action on a bad sample in training: ``raise``, ``replace`` or ``skip``.
        eval_on_error: Action on a bad sample in evaluation: ``raise`` or ``skip``.
        max_error_rate: Share of bad samples above which a run stops, from 10 bad samples on; 0
            stops at the first.
    """

    engine: str | None = None
    batch_size: Annotated[int, Ge(1)] = 64
    eval_batch_size: Annotated[int, Ge(1)] | None = None
    num_workers: Annotated[int, Ge(0), Le(_MOST)] | Literal["auto"] = "auto"
    resources: dict[str, Annotated[float, Ge(0)]] | None = None
    affinity: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)] | Literal["none"] = "none"
    nice: Annotated[int, Ge(0), Le(19)] = 0
    prefetch_factor: Annotated[int, Ge(1), Le(_MOST)] = 2
    pin_memory: bool | Literal["auto"] = "auto"
    persistent_workers: bool = True
    across_epochs: bool = True
    timeout_s: Annotated[float, Gt(0), Le(_LONGEST_S)] = 120.0
    multiprocessing_context: Literal["forkserver", "spawn"] | None = None
    drop_last: bool | Literal["pad"] = True
    on_error: Literal["raise", "replace", "skip"] = "replace"
    eval_on_error: Literal["raise", "skip"] = "skip"
    max_error_rate: Annotated[float, Ge(0), Le(1)] = 0.05

    def __post_init__(self) -> None:
        """Check what no single value shows; a config checks each value by its annotation."""
        if self.engine is not None:
            executor_named(self.engine)
        for name, engine in (("multiprocessing_context", "torch"), ("resources", "ray")):
            if getattr(self, name) is not None and self.engine != engine:
                raise ValueError(
                    f"loader.{name} is for loader={engine}, and loader.engine is {self.engine}: "
                    f"type loader={engine}, or loader.{name}=null"
                )
        if self.engine == "ray" and (self.affinity != "none" or self.nice):
            raise ValueError(
                "loader.affinity and loader.nice: Ray places its tasks itself; type "
                "loader.affinity=none loader.nice=0"
            )
        allowed = os.sched_getaffinity(0)
        if not isinstance(self.affinity, str) and (missing := {*self.affinity} - allowed):
            raise ValueError(
                f"loader.affinity: core {min(missing)} given, this process may use "
                f"{sorted(allowed)}; type loader.affinity=none"
            )

    @property
    def workers(self) -> int:
        """Number of workers; for ``auto``, this rank's share of the cores."""
        return default_workers() if self.num_workers == "auto" else self.num_workers

    def apply_to_worker(self) -> None:
        """Set the cores and niceness of the calling thread; threads that it starts inherit both."""
        if not isinstance(self.affinity, str):
            os.sched_setaffinity(0, self.affinity)
        if self.nice:
            os.nice(self.nice)

    def batch_size_of(self, split: str) -> int:
        """Return the number of samples in a batch over all ranks."""
        if split != "train" and self.eval_batch_size is not None:
            return self.eval_batch_size
        return self.batch_size

    def tail_of(self, split: str) -> Literal["drop", "pad", "keep"]:
        """Return the tail rule; evaluation keeps every sample."""
        if split != "train" or self.drop_last is False:
            return "keep"
        return "pad" if self.drop_last == "pad" else "drop"

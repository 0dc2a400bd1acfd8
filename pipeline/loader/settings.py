"""Settings of the loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import TypeAdapter, ValidationError

from penstock.core.processes import default_workers
from penstock.core.registry import register
from penstock.pipeline.loader.executors import executor_named
from penstock.pipeline.loader.placement import cores_text

_LONGEST_S = 1e7
"""Some system calls refuse longer waits."""
_MOST = 1024
"""Bound of workers and of batches ahead; more exhaust threads or memory."""


_NICEST = 19


@register("settings", "loader")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Sizes of batches, workers, and actions on bad samples.

    Attributes:
        engine: Executor of batches: ``threads``, ``processes`` (dead or hanging workers are
            replaced), ``ray`` (actors of a Ray cluster), ``torch`` (torch's DataLoader) or
            ``inline`` (this process). null: ``inline`` without workers, ``threads`` for batches
            made as columns, else ``processes``.
        batch_size: Samples in a batch over all ranks; the maximum if the sampler cuts batches.
        eval_batch_size: Batch size of evaluation; null for `batch_size`.
        num_workers: Workers per rank; 0 computes in this process. ``auto``: one for each core of
            this rank's share by affinity and quota, 32 at most.
        resources: For ``ray``, resources of each actor: ``{CPU: 2}``, or ``{decoders: 1}`` for a
            resource of your cluster. null: one core, needed only for placement.
        affinity: List of cores for workers, threads included; ``none`` for the trainer's cores. The
            trainer itself is not bound.
        nice: Niceness of workers, 0 to 19: higher values leave more CPU time to the trainer.
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
            is replaced; up to 10 million.
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
    nice: Annotated[int, Ge(0), Le(_NICEST)] = 0
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
        for name, adapter in _adapters().items():
            value: Any = getattr(self, name)
            try:
                adapter.validate_python(value, strict=True)
            except ValidationError as error:
                problems = [each["msg"].lower() for each in error.errors(include_url=False)]
                raise ValueError(f"loader.{name} is {value!r}: {', or '.join(problems)}") from None
        self._check_engine()
        self._check_affinity()

    def _check_engine(self) -> None:
        if self.engine == "auto":
            raise ValueError(
                "loader.engine is 'auto', which a fixed rule replaced: type loader=default"
            )
        if self.engine is not None:
            executor_named(self.engine)
        if self.multiprocessing_context is not None and self.engine != "torch":
            raise ValueError(
                f"loader.multiprocessing_context is for torch's DataLoader, and loader.engine is "
                f"{self.engine}: type loader=torch, or loader.multiprocessing_context=null"
            )
        if self.resources is not None and self.engine != "ray":
            raise ValueError(
                f"loader.resources is for actors of Ray, and loader.engine is "
                f"{self.engine}: type loader=ray, or loader.resources=null"
            )

    def _check_affinity(self) -> None:
        if self.engine == "ray" and (self.affinity != "none" or self.nice):
            raise ValueError(
                f"loader.affinity is {self.affinity!r} and loader.nice {self.nice}, and "
                f"Ray places its actors itself: type loader.affinity=none loader.nice=0, "
                f"and set their resources in loader.resources"
            )
        if not isinstance(self.affinity, str):
            allowed = os.sched_getaffinity(0)
            if missing := sorted({*self.affinity} - allowed):
                left = sorted({*self.affinity} & allowed)
                cores = f"'loader.affinity=[{','.join(map(str, left))}]'"
                raise ValueError(
                    f"loader.affinity: core {missing[0]} given, this process may use "
                    f"{cores_text(allowed)}; type {cores if left else 'loader.affinity=none'}"
                )

    @property
    def workers(self) -> int:
        """Number of workers; for ``auto``, this rank's share of the cores."""
        if self.num_workers == "auto":
            return default_workers()
        return self.num_workers

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


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(LoaderSettings, include_extras=True)
    return {name: TypeAdapter(annotation) for name, annotation in hints.items()}

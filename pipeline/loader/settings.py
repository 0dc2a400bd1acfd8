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
"""Longer waits are more than some system calls take; infinite ones are more than all of them."""
_MOST = 1024
"""Bound of workers, processes and batches ahead.

More of them are a slip of the pen: an operating system refuses so many threads of one program,
or takes minutes to start them, and so many batches fill any memory before the first is used.
"""


_NICEST = 19


@register("settings", "loader")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How batches are made: sizes, workers, and what happens to bad samples.

    Attributes:
        engine: Executor of batches: null (``inline`` without workers, ``threads`` where batches
            are made as columns, else ``processes``), ``threads`` (of this process),
            ``processes`` (worker processes, which are replaced when they die or hang), ``ray``
            (the same with actors of a Ray cluster), ``torch`` (worker processes of torch's
            DataLoader) or ``inline`` (this process, one batch at a time).
        batch_size: Samples in a batch over all ranks; the most, where a sampler cuts batches.
        eval_batch_size: The same for evaluation; null takes `batch_size`.
        num_workers: Workers of each rank; 0 computes in this process; ``auto``: one for each
            core of this rank's share, by affinity and quota, 32 at most.
        resources: Of ``ray``: what each actor takes of its machine, as ``{CPU: 2}`` or
            ``{decoders: 1}`` for a resource of the cluster's own. null: a core that is free when
            it is placed.
        affinity: Cores that workers may run on, processes and threads alike: a list of their
            numbers; ``none``: the cores of the trainer. The trainer itself is left alone.
        nice: How far workers give way to the trainer where cores are short: 0, not at all, to
            19. The kernel's own priority, as of ``nice``.
        prefetch_factor: Batches that each worker computes ahead. Small ones that need no work
            per sample (arrays, tables) are made up to 16 at a time, in bundles of up to 6 MB,
            and a bundle counts as one; not by ``torch``.
        pin_memory: Batches in page-locked memory, which an accelerator copies from without help
            of a core; ``auto``: if the loader feeds one.
        persistent_workers: Keep workers from one epoch to the next.
        across_epochs: In training, compute the first batches of the next epoch when the last ones
            of this have been begun, so that workers never wait at an epoch's end. They take
            memory while it is evaluated. Needs `persistent_workers`.
        timeout_s: Seconds to wait for one batch before giving up, or before a worker process of
            ours is replaced; up to 10 million, which is a third of a year.
        multiprocessing_context: Of ``torch``: how its worker processes start, ``forkserver``
            (null) or ``spawn``.
        drop_last: The tail of the epoch: true leaves it out, false keeps a short batch,
            ``pad`` fills the batch with rows marked invalid. Samplers that cut batches have none.
        on_error: A bad sample in training: ``raise``, ``replace`` it by another, ``skip`` it.
        eval_on_error: A bad sample in evaluation: ``raise`` or ``skip``.
        max_error_rate: Share of bad samples above which the run stops; fewer than 10 stop it at
            0 alone.
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
                "loader.engine is 'auto', which a fixed rule replaces: type loader=default"
            )
        if self.engine is not None:
            executor_named(self.engine)
        if self.multiprocessing_context is not None and self.engine != "torch":
            raise ValueError(
                f"loader.multiprocessing_context is of torch's DataLoader, and loader.engine is "
                f"{self.engine}: type loader=torch, or loader.multiprocessing_context=null"
            )
        if self.resources is not None and self.engine != "ray":
            raise ValueError(
                f"loader.resources is what an actor of Ray takes, and loader.engine is "
                f"{self.engine}: type loader=ray, or loader.resources=null"
            )

    def _check_affinity(self) -> None:
        if self.engine == "ray" and (self.affinity != "none" or self.nice):
            raise ValueError(
                f"loader.affinity is {self.affinity!r} and loader.nice {self.nice}, and "
                f"Ray places its actors itself: type loader.affinity=none loader.nice=0, "
                f"and say by loader.resources what each takes"
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
        """Number of workers: `num_workers`, or this rank's share of the cores."""
        if self.num_workers == "auto":
            return default_workers()
        return self.num_workers

    def batch_size_of(self, split: str) -> int:
        """Samples in a batch over all ranks, to train or to evaluate."""
        if split != "train" and self.eval_batch_size is not None:
            return self.eval_batch_size
        return self.batch_size

    def tail_of(self, split: str) -> Literal["drop", "pad", "keep"]:
        """The tail rule: evaluation keeps every sample."""
        if split != "train" or self.drop_last is False:
            return "keep"
        return "pad" if self.drop_last == "pad" else "drop"


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """Return a checker of each setting, by its annotation."""
    hints = get_type_hints(LoaderSettings, include_extras=True)
    return {name: TypeAdapter(annotation) for name, annotation in hints.items()}

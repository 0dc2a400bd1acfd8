"""Settings of the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from pipeline.cores import default_workers
from pipeline.registry import register

_LONGEST_S = 1e7
"""Longer waits are more than some system calls take; infinite ones are more than all of them."""
_MOST = 1024
"""Bound of workers, processes and batches ahead.

More of them are a slip of the pen: an operating system refuses so many threads of one program,
or takes minutes to start them, and so many batches fill any memory before the first is used.
"""


@register("settings", "loader")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How batches are made: sizes, workers, and what happens to bad samples.

    Attributes:
        engine: Who computes batches: ``auto`` (finds out what is fastest), ``ring`` (threads, of
            this process or of others), ``torch`` (worker processes of torch's DataLoader) or
            ``inline`` (this process).
        batch_size: Samples in a batch over all ranks.
        eval_batch_size: The same for evaluation; null takes `batch_size`.
        num_workers: Workers of each rank; 0 computes in this process; ``auto``: one for each
            core of this rank's share, by affinity and quota, 32 at most.
        processes: Of ``auto`` and ``ring``: worker processes that the workers, which are
            threads, are spread over. 0: threads of this process. null: what ``auto`` finds out;
            with ``ring`` threads of this process, unless a component draws from global random
            states; then each worker is a process.
        prefetch_factor: Batches that each worker computes ahead. Of ``auto`` and ``ring``, small
            ones that need no work per sample (arrays, tables) are made up to 16 at a time, in
            bundles of up to 6 MB, and a bundle counts as one.
        read_ahead: Of ``auto`` and ``ring``: that many batches more are handed out, and the
            records of those that wait for a worker are read by threads of their own. For slow
            storages (a network, cold disks); it takes the memory of so many batches. 0: workers
            read.
        pin_memory: Page-locked batches for fast copies to the device; ``auto``: if there is CUDA.
        persistent_workers: Keep workers from one epoch to the next.
        across_epochs: In training, compute the first batches of the next epoch when the last ones
            of this have been begun, so that workers never wait at an epoch's end. They take
            memory while it is evaluated. Needs `persistent_workers`.
        timeout_s: Seconds to wait for one batch before giving up, or before a worker process of
            ``ring`` is replaced; up to 10 million, which is a third of a year.
        multiprocessing_context: How worker processes start.
        drop_last: The tail of the epoch: true leaves it out, false keeps a short batch,
            ``pad`` fills the batch with rows marked invalid.
        on_error: A bad sample in training: ``raise``, ``replace`` it by another, ``skip`` it.
        eval_on_error: A bad sample in evaluation: ``raise`` or ``skip``.
        max_error_rate: Share of bad samples above which the run stops.
    """

    engine: str = "auto"
    batch_size: Annotated[int, Ge(1)] = 64
    eval_batch_size: Annotated[int, Ge(1)] | None = None
    num_workers: Annotated[int, Ge(0), Le(_MOST)] | Literal["auto"] = "auto"
    processes: Annotated[int, Ge(0), Le(_MOST)] | None = None
    prefetch_factor: Annotated[int, Ge(1), Le(_MOST)] = 2
    read_ahead: Annotated[int, Ge(0), Le(_MOST)] = 0
    pin_memory: bool | Literal["auto"] = "auto"
    persistent_workers: bool = True
    across_epochs: bool = True
    timeout_s: Annotated[float, Gt(0), Le(_LONGEST_S)] = 120.0
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] = "forkserver"
    drop_last: bool | Literal["pad"] = True
    on_error: Literal["raise", "replace", "skip"] = "replace"
    eval_on_error: Literal["raise", "skip"] = "skip"
    max_error_rate: Annotated[float, Ge(0), Le(1)] = 0.05

    def __post_init__(self) -> None:
        minimum = {"batch_size": 1, "prefetch_factor": 1, "read_ahead": 0}
        for name, least in minimum.items():
            if getattr(self, name) < least:
                raise ValueError(f"loader.{name} is {getattr(self, name)}; needs {least} or more")
        if self.num_workers != "auto" and not (
            isinstance(self.num_workers, int) and self.num_workers >= 0
        ):
            raise ValueError(
                f"loader.num_workers is {self.num_workers!r}; needs 0 or more, or auto"
            )
        if self.eval_batch_size is not None and self.eval_batch_size < 1:
            raise ValueError(f"loader.eval_batch_size is {self.eval_batch_size}; needs 1 or more")
        if self.processes is not None and self.processes < 0:
            raise ValueError(f"loader.processes is {self.processes}; needs 0 or more, or null")
        for name in ("num_workers", "processes", "prefetch_factor", "read_ahead"):
            value = getattr(self, name)
            if isinstance(value, int) and value > _MOST:
                raise ValueError(f"loader.{name} is {value}; needs {_MOST} or less")
        if self.engine in ("auto", "ring") and self.workers < (self.processes or 0):
            raise ValueError(
                f"loader.processes is {self.processes} and loader.num_workers {self.num_workers}: "
                f"each process needs a worker; raise num_workers or lower processes"
            )
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise ValueError(
                f"loader.timeout_s is {self.timeout_s:g}; needs more than 0, up to {_LONGEST_S:g}"
            )
        if not 0 <= self.max_error_rate <= 1:
            raise ValueError(f"loader.max_error_rate is {self.max_error_rate}; needs 0 to 1")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                accepted = ", ".join(str(choice) for choice in choices)
                raise ValueError(f"loader.{name} is {getattr(self, name)!r}; expected {accepted}")

    @property
    def workers(self) -> int:
        """Number of workers: what was asked for, or this rank's share of the cores."""
        if self.num_workers == "auto":
            return max(default_workers(), self.processes or 0)
        return self.num_workers

    def batch_size_of(self, split: str) -> int:
        """Samples in a batch over all ranks, for ``train`` or ``val``."""
        if split == "val" and self.eval_batch_size is not None:
            return self.eval_batch_size
        return self.batch_size

    def tail_of(self, split: str) -> Literal["drop", "pad", "keep"]:
        """The tail rule: evaluation keeps every sample."""
        if split == "val" or self.drop_last is False:
            return "keep"
        return "pad" if self.drop_last == "pad" else "drop"


_CHOICES: dict[str, tuple[object, ...]] = {
    "multiprocessing_context": ("forkserver", "spawn", "fork"),
    "on_error": ("raise", "replace", "skip"),
    "eval_on_error": ("raise", "skip"),
    "pin_memory": (True, False, "auto"),
    "drop_last": (True, False, "pad"),
}

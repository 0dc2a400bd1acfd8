"""Join the processes that train together, as torchrun starts them, or be the only one."""

from __future__ import annotations

import atexit
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn  # now: its defaults keep the group there is when it is imported
from torch import nn

from penstock.core.user_errors import ExplainedError
from penstock.pipeline.config.errors import leave_it_to_another
from penstock.pipeline.training.distributed.watch import RankWatch

T = TypeVar("T")
_OTHERS_SPEAK_S = 3.0
_LOOKS_EACH_S = 0.02

_ended: list[Any] = []


@atexit.register
def _free_ended() -> None:
    """Free the groups, whose threads may still wait for the GIL to free their last tensors.

    Not earlier: DDP's reducer, if it is what held a group last, waits for the threads with the GIL
    held. Nor later: a thread that asks for the GIL of a Python that is gone aborts the process.
    """
    gc.collect()
    _ended.clear()


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together.

    Attributes:
        rank: Its number; 0 is the one that prints and writes.
        size: How many there are.
        device: Where it computes.
        store: The key-value store they share; None for a single process.
        watch: Names ranks that are late; None for a single process.
    """

    rank: int
    size: int
    device: torch.device
    store: Any = field(default=None, repr=False)
    watch: RankWatch | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Sums over the ranks, by way of host memory: the device is not waited for."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with self._watched():
            dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks in place, on its device."""
        if self.size > 1:
            with self._watched():
                dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._watched():
            dist.all_gather_object(values, value)
        return values

    def on_main(self, function: Callable[[], T]) -> T:
        """Call `function` on rank 0, and return on every rank what it gave.

        Raises:
            ValueError: `function` raised it (or OSError, or ExplainedError) on rank 0; on every
                rank, so that none waits for the others.
        """
        if self.size == 1:
            return function()
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = function()
            except (ValueError, OSError, ExplainedError) as error:
                answer[1] = str(error)
        with self._watched():
            dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise ValueError(answer[1])
        return answer[0]

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self.watch is None else self.watch.collective()

    def take_buffers(self, model: nn.Module) -> None:
        """Give every rank rank 0's buffers, such as the running means of batch norm."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)


@contextmanager
def joined(device: str, timeout_s: float, *, grouped: bool = False) -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun, a world of one.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        timeout_s: Seconds after which a rank that waits for the others gives up.
        grouped: A single process is a group of torch's, too.

    Raises:
        ValueError: The device is not there, or another rank stopped or went silent.
        SystemExit: Rank 0 has reported the same error already.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    try:
        where = local_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    except ValueError:
        if rank and not torch.cuda.device_count():  # rank 0 has the same error, and tells it
            leave_it_to_another()
            raise SystemExit(1) from None
        raise
    # Gloo beside NCCL: what the host decides (who stops, how many rows are valid) must not
    # wait for the device.
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    if size == 1:
        if grouped:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield World(0, 1, where)
        finally:
            if grouped:
                dist.destroy_process_group()
        return
    timeout = timedelta(seconds=timeout_s)
    store = _met(next(dist.rendezvous("env://", timeout=timeout))[0], rank, size, timeout_s)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("ranks", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    watch = RankWatch(dist.PrefixStore("watch", store), rank, size)
    world = World(rank, size, where, store, watch)
    try:
        yield world
    except Exception as error:
        watch.close()
        told = _told_once(world, error)
        if told is error:
            raise
        raise told from error
    watch.close()
    # Only after success: with a rank gone, taking the group down could wait for it.
    _leave()


def _leave() -> None:
    _ended.append(dist.group.WORLD)
    dist.destroy_process_group()


def _met(store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """The part of the store that these processes share, and none that ran before them.

    What torchrun starts again finds the same store, with all that was written before: where ranks
    listened that are gone, who stopped first. Each rank gives its own word, and rank 0 answers
    until all that it has are of now.

    Raises:
        ValueError: A rank did not come.
    """
    store.set_timeout(timedelta(seconds=timeout_s))
    word, missing = uuid4().hex, set(range(1, size))
    if rank:
        store.set(f"penstock/{rank}", word)
        try:
            place = store.get(f"penstock/{word}").decode()
        except dist.DistError as error:
            raise ValueError(_nobody_came("rank 0", timeout_s)) from error
        store.set(f"{place}/{rank}", word)
        return dist.PrefixStore(place, store)
    place, deadline_s = f"penstock/{word}", time.monotonic() + timeout_s
    while missing := {other for other in missing if not store.check([f"{place}/{other}"])}:
        if time.monotonic() > deadline_s:
            raise ValueError(_nobody_came(f"rank {min(missing)}", timeout_s))
        for other in missing:
            if store.check([f"penstock/{other}"]):
                store.set(f"penstock/{store.get(f'penstock/{other}').decode()}", place)
        time.sleep(_LOOKS_EACH_S)
    return dist.PrefixStore(place, store)


def _nobody_came(who: str, timeout_s: float) -> str:
    return (
        f"{who} did not come within trainer.timeout_s={timeout_s:g}; look why it did not start, "
        f"or give it longer"
    )


def local_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that ``trainer.device`` names, for one of the processes of this machine.

    Raises:
        ValueError: It is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"trainer.device is {name!r}, expected auto, cpu, cuda or cuda:<n>; type "
            f"trainer.device=cpu"
        )
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count()
    device = torch.device("cuda", local_rank if device.index is None else device.index)
    assert device.index is not None
    if device.index >= count:
        raise ValueError(f"trainer.device: {device} is not there, torch sees {count}; type "
                         f"trainer.device={'cuda:0' if count else 'cpu'}")  # fmt: skip
    torch.cuda.set_device(device)
    return device


def _told_once(world: World, error: Exception) -> BaseException:
    """The error to raise on this rank: the first cause of all is told, by the rank that has it.

    A rank whose collective broke off gives the one that broke it some seconds to tell why.
    """
    explained = isinstance(error, (ValueError, OSError, ExplainedError))
    lost = isinstance(error, RuntimeError) and not explained and _broke_off(error)
    try:
        if lost:
            with suppress(dist.DistStoreError):
                world.store.wait(["stopped"], timedelta(seconds=_OTHERS_SPEAK_S))
        first = world.store.compare_set("stopped", "", str(world.rank)).decode()
        if world.device.type == "cpu":  # with NCCL this could wait for the device
            _leave()  # ends the waiting of the others
        if first != str(world.rank):
            leave_it_to_another()
            return SystemExit(1)
    except (RuntimeError, OSError):  # the store was rank 0's, and rank 0 is gone
        pass
    if lost:
        return ValueError(
            f"another rank ended, or did not answer within trainer.timeout_s: "
            f"{str(error).splitlines()[0]}"
        )
    if world.is_main or not explained:
        return error
    return ValueError(f"rank {world.rank} stopped: {error}")


def _broke_off(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("gloo", "nccl", "connection", "timed out", "peer"))


def gather_in_order(results: Iterable[dict[str, Any]], world: World) -> dict[str, Any]:
    r"""What was computed batch by batch on all ranks, each position once, in global order.

    In evaluation, and with ``sampler=inference``, position i is record i::

        with torch.no_grad():
            results = (
                {**{name: batch[name] for name in ("position", "valid", "key")},
                 "logits": model(batch)}
                for batch in loader
            )
            predictions = gather_in_order(results, world)

    Rows that are not valid (padding, a rank without samples) are dropped. Every rank must call
    this, and gets the whole: all of it is held in memory, on the CPU.

    Args:
        results: For each batch of this rank ``position`` int64 [B], ``valid`` bool [B] if rows
            may not be, and what else is to be kept: tensors [B, ...] or lists of B. All batches
            have the same names, and rows of equal shapes.
        world: The ranks; ``World(0, 1, device)`` for one.

    Returns:
        ``position`` int64 [N], rising, and the rest by name: tensors [N, ...], lists of N.
        Positions that no rank has (skipped samples) are left out.

    Raises:
        ValueError: A position stands twice, or what ranks give does not go together; on every
            rank.
    """
    kept: dict[str, list[Any]] = {}
    cause = None
    try:
        for result in results:
            _keep(kept, result)
    except ValueError as error:  # said to all ranks: none must wait for this one
        cause = str(error)
    parts = world.gather(({name: _joined(values) for name, values in kept.items()}, cause))
    for _, said in parts:
        if said is not None:
            raise ValueError(said)
    columns = [column for column, _ in parts if column]
    if len({tuple(sorted(column)) for column in columns}) > 1:
        names = " and ".join(sorted({", ".join(sorted(column)) for column in columns}))
        raise ValueError(f"gather_in_order: ranks give different things: {names}")
    if not columns:
        return {"position": torch.zeros(0, dtype=torch.int64)}
    return _in_order({name: _joined([c[name] for c in columns]) for name in columns[0]})


def _keep(kept: dict[str, list[Any]], result: dict[str, Any]) -> None:
    """Add the valid rows of a batch."""
    if "position" not in result:
        raise ValueError(
            f"gather_in_order: a batch has {', '.join(sorted(result))}, and no 'position'; pass "
            f"on the loader's"
        )
    count = len(result["position"])
    valid = result.get("valid")
    rows = torch.arange(count) if valid is None else valid.cpu().nonzero()[:, 0]
    if kept and kept.keys() != result.keys() - {"valid"}:
        raise ValueError(
            f"gather_in_order: a batch has {', '.join(sorted(result.keys() - {'valid'}))}, those "
            f"before {', '.join(sorted(kept))}; give each the same"
        )
    for name, values in result.items():
        if name == "valid":
            continue
        if len(values) != count:
            raise ValueError(
                f"gather_in_order: {name!r} has {len(values)} rows, 'position' {count}; give one "
                f"row for each"
            )
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
        kept.setdefault(name, []).append(_taken(values, rows))


def _taken(values: Any, rows: torch.Tensor) -> Any:
    if isinstance(values, torch.Tensor):
        return values[rows]
    return [values[row] for row in rows.tolist()]


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values)
    return [value for some in values for value in some]


def _in_order(columns: dict[str, Any]) -> dict[str, Any]:
    positions = columns["position"]
    order = positions.argsort(stable=True)
    ordered = positions[order]
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(
            f"gather_in_order: position {int(twice[0])} stands twice; give the batches of one "
            f"epoch, each rank its own"
        )
    return {name: _taken(values, order) for name, values in columns.items()}

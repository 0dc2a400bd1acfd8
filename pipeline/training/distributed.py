"""The processes that train together, as torchrun starts them; one process is the plain case."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")
_OTHERS_SPEAK_S = 3.0


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together.

    Attributes:
        rank: Its number; 0 is the one that prints and writes.
        size: How many there are.
        device: Where it computes.
        store: The key-value store they share; None for a single process.
    """

    rank: int
    size: int
    device: torch.device
    store: Any = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """Sums over the ranks, by way of host memory: the device is not waited for."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks in place, on its device."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_main(self, function: Callable[[], T]) -> T:
        """What `function` returns on rank 0, on every rank.

        Raises:
            ValueError: `function` raised it (or OSError) on rank 0; on every rank, so that
                none waits for the others.
        """
        if self.size == 1:
            return function()
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = function()
            except (ValueError, OSError) as error:
                answer[1] = str(error)
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise ValueError(answer[1])
        return answer[0]

    def take_buffers(self, model: nn.Module) -> None:
        """Give every rank rank 0's buffers, such as the running means of batch norm."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the ranks."""
        if self.size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)


@contextmanager
def joined(device: str, timeout_s: float) -> Iterator[World]:
    """Join the processes that torchrun started; without torchrun, a world of one.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        timeout_s: Seconds after which a rank that waits for the others gives up.

    Raises:
        ValueError: The device is not there, or another rank stopped or went silent.
        SystemExit: Rank 0 has reported the same error already.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    where = local_device(device, int(os.environ.get("LOCAL_RANK", 0)))
    if size == 1:
        yield World(0, 1, where)
        return
    timeout = timedelta(seconds=timeout_s)
    # Gloo beside NCCL: what the host decides (who stops, how many rows are valid) must not
    # wait for the device.
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    store = next(dist.rendezvous("env://", timeout=timeout))[0]
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("penstock", store),
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    world = World(rank, size, where, store)
    try:
        yield world
    except Exception as error:
        raise _said_once(world, error) from error
    # Only after success: with a rank gone, taking the group down could wait for it.
    dist.destroy_process_group()


def local_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that ``trainer.device`` names, for one of the processes of this machine.

    Raises:
        ValueError: It is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(
            f"trainer.device is {name!r}, expected auto, cpu, cuda or cuda:<n>"
        ) from error
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    device = torch.device("cuda", local_rank if device.index is None else device.index)
    assert device.index is not None
    if device.index >= count:
        raise ValueError(f"trainer.device: {device} is not there, torch sees {count}; use cpu")
    torch.cuda.set_device(device)
    return device


def _said_once(world: World, error: Exception) -> BaseException:
    """The error to raise on this rank: each cause is told by one rank alone, by 0 if it can.

    Every rank writes its cause into the store. A rank whose collective broke off looks there
    for the one that broke it; rank 0 takes that cause over as its own.
    """
    lost = isinstance(error, RuntimeError) and _broke_off(error)
    mine = f"{type(error).__name__}: {error}"
    try:
        if not lost:
            world.store.set(f"stopped/{world.rank}", mine)
        if world.device.type == "cpu":  # with NCCL this could wait for the device
            dist.destroy_process_group()  # ends the waiting of the others
        wait_s = _OTHERS_SPEAK_S if lost or not world.is_main else 0.0
        others = _causes(world, wait_s)
        if lost and others and world.is_main:
            world.store.set("stopped/0", next(iter(others.values())))
    except (RuntimeError, OSError):  # the store was rank 0's, and rank 0 is gone
        others = {}
    if not world.is_main and (mine in others.values() or (lost and others)):
        return SystemExit(1)
    if lost and others:
        rank, cause = min(others.items())
        return ValueError(f"rank {rank} stopped: {cause.split(': ', 1)[-1]}")
    if lost:
        error = ValueError(
            f"another rank ended, or did not answer within trainer.timeout_s: "
            f"{str(error).splitlines()[0]}"
        )
    if world.is_main:
        return error
    print(f"rank {world.rank}: {error}", file=sys.stderr, flush=True)
    return SystemExit(1)


def _broke_off(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("gloo", "nccl", "connection", "timed out", "peer"))


def _causes(world: World, wait_s: float) -> dict[int, str]:
    """Why other ranks stopped, as far as they said within `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        found = {
            rank: world.store.get(f"stopped/{rank}").decode()
            for rank in range(world.size)
            if rank != world.rank and world.store.check([f"stopped/{rank}"])
        }
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)

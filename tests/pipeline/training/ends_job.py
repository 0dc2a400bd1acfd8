"""Pairs of ranks that train a little and end at once, while the group's threads are still busy."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch._dynamo  # which DDP imports: once, and not in each rank

from penstock.pipeline.training.distributed.ddp import DataParallel
from penstock.pipeline.training.distributed.world import joined


def trained() -> None:
    """Hold the shared model until the group is gone, as a training does."""
    with joined("cpu", 20) as world:
        model = DataParallel(world).share(torch.nn.Linear(3, 2))
        model(torch.ones(4, 3)).sum().backward()
        for _ in range(100):  # the last tensor of each is freed by a thread of the group
            world.sum_tensor(torch.ones(3))


def main() -> None:
    """Start and end ``argv[1]`` pairs; those that did not end well are printed."""
    children = {}
    for _ in range(int(sys.argv[1])):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        pair = [_rank(0), _rank(1)]
        children |= {pid: os.waitpid(pid, 0)[1] for pid in pair}
    print([status for status in children.values() if status])


def _rank(rank: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ["RANK"] = str(rank)
    sys.setswitchinterval(1000)  # no other thread gets the GIL unless this one waits
    trained()
    raise SystemExit


if __name__ == "__main__":
    main()

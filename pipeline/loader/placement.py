"""Where workers run: the cores that they are bound to, and how far they give way."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipeline.loader.settings import LoaderSettings

_logger = logging.getLogger(__name__)

_said: set[str] = set()


@dataclass(frozen=True, slots=True)
class Placement:
    """What a worker does to itself when it starts.

    Attributes:
        cores: The cores that it may run on; None: those of the trainer.
        nice: How much nicer it is than the trainer.
    """

    cores: frozenset[int] | None = None
    nice: int = 0

    def enter(self) -> None:
        """Bind the calling thread, and all that it will start; both calls are of a thread alone."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        if self.nice:
            os.nice(self.nice)

    def enter_process(self) -> None:
        """Bind the calling thread and all others, which libraries begin at a fork."""
        self.enter()
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        for task in map(int, os.listdir("/proc/self/task")):
            with suppress(OSError):  # it ended meanwhile
                if self.cores is not None:
                    os.sched_setaffinity(task, self.cores)
                os.setpriority(os.PRIO_PROCESS, task, priority)


AS_THE_TRAINER = Placement()


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides which cores are near.

    Attributes:
        nodes: Cores by NUMA node.
        gpu_nodes: The NUMA node of the GPU of each local rank, as far as that is known; -1: the
            system does not say.
    """

    nodes: Mapping[int, frozenset[int]]
    gpu_nodes: tuple[int, ...] = ()


def placement_of(settings: LoaderSettings) -> Placement:
    """Where the workers of this process are to run; says once what ``auto`` comes to."""
    if settings.affinity == "none":
        return Placement(nice=settings.nice)
    if settings.affinity != "auto":
        return Placement(frozenset(settings.affinity), settings.nice)
    rank, ranks = (int(os.environ.get(f"LOCAL_{name}", n)) for name, n in _RANKS.items())
    machine = read_machine(ranks)
    cores, why = near_cores(machine, os.sched_getaffinity(0), local_rank=rank, local_ranks=ranks)
    if "auto" not in _said:
        _said.add("auto")
        _logger.info("loader.affinity=auto: %s", why)
    return Placement(cores, settings.nice)


_RANKS = {"RANK": 0, "WORLD_SIZE": 1}


def near_cores(
    machine: Machine, allowed: set[int], *, local_rank: int, local_ranks: int
) -> tuple[frozenset[int] | None, str]:
    """Choose the cores for a rank's workers: those of its GPU's NUMA node, whole.

    Ranks of one node share it, and the kernel balances them there. Nobody is bound where that
    would give a rank fewer cores than an even share of all, nor where there is nothing to be
    nearer to: within a node, cutting cores up only takes the kernel's choice away.

    Args:
        machine: What is where.
        allowed: The cores that this process may use.
        local_rank: This process among those of the machine.
        local_ranks: Their number.

    Returns:
        The cores, or None where nobody is bound; and why.
    """
    if local_ranks < 2:
        return None, "workers stay unbound: one rank has the machine to itself"
    usable = {node: cores & allowed for node, cores in machine.nodes.items()}
    if sum(map(bool, usable.values())) < 2:
        return None, "workers stay unbound: all cores are of one NUMA node"
    known = len(machine.gpu_nodes) >= local_ranks
    node = machine.gpu_nodes[local_rank] if known else -1
    if node not in usable:
        return None, f"workers stay unbound: nobody says which node rank {local_rank}'s GPU is at"
    cores, here = usable[node], machine.gpu_nodes[:local_ranks].count(node)
    each, even = len(cores) // here, len(allowed) // local_ranks
    if not cores or each < even:
        return None, (
            f"workers stay unbound: NUMA node {node} has {each} cores for each of its {here} "
            f"ranks, an even share of all is {even}"
        )
    return cores, f"workers on the {len(cores)} cores of NUMA node {node}, where the GPU is"


def read_machine(local_ranks: int, root: Path = Path("/sys")) -> Machine:
    """Read what the kernel tells of NUMA nodes, and of the GPUs of so many local ranks.

    Args:
        local_ranks: Ranks of this machine; of one alone, no GPU is asked for.
        root: Where sysfs is.
    """
    nodes = {
        int(folder.name.removeprefix("node")): parse_cores((folder / "cpulist").read_text())
        for folder in root.glob("devices/system/node/node[0-9]*")
    }
    if local_ranks < 2 or len(nodes) < 2:
        return Machine(nodes)
    files = [root / "bus/pci/devices" / each / "numa_node" for each in _gpu_addresses()]
    return Machine(nodes, tuple(int(each.read_text()) if each.exists() else -1 for each in files))


def _gpu_addresses() -> list[str]:
    """Find the PCI address of each GPU that torch sees, in its order; none: torch does not say."""
    import torch

    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    try:
        places = [(gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id) for gpu in found]  # type: ignore[attr-defined]
    except AttributeError:  # torch before 2.9
        return []
    return [f"{domain:04x}:{bus:02x}:{device:02x}.0" for domain, bus, device in places]


def cores_text(cores: set[int]) -> str:
    """Write cores as the kernel does: ``0-3,8``."""
    ordered = sorted(cores)
    firsts = [core for core in ordered if core - 1 not in cores]
    lasts = [core for core in ordered if core + 1 not in cores]
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pairs)


def parse_cores(text: str) -> frozenset[int]:
    """Read a list of cores as the kernel writes it: ``0-3,8,10-11``."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)

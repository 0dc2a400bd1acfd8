"""Two nodes on one machine: network namespaces, each with an address and its own torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = "nodes0"


class Node:
    """A network namespace, and the torchrun in it.

    Attributes:
        log: The output of torchrun and its ranks.
    """

    def __init__(self, name: str, address: str, log: Path) -> None:
        self.log = log
        self._name, self._address = name, address
        self._torchrun: subprocess.Popen[bytes] | None = None

    def train(self, nnodes: str, meets_at: str, arguments: list[str]) -> None:
        """Start torchrun with one rank; the node at address `meets_at` hosts the rendezvous."""
        hosts = int(meets_at == self._address)
        command = ["ip", "netns", "exec", self._name, sys.executable, "-m"]
        command += ["torch.distributed.run", f"--nnodes={nnodes}", "--nproc-per-node=1"]
        command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint={meets_at}:29400"]
        command += [f"--rdzv-conf=is_host={hosts},last_call_timeout=2"]
        command += [f"--local-addr={self._address}", str(ROOT / "train.py"), *arguments]
        network = {"GLOO_SOCKET_IFNAME": _LINK, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if "1:" not in nnodes:  # only an elastic job needs it
            del network["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]
        environment = {**os.environ, **network, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self._torchrun = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def kill_rank(self) -> None:
        """Kill the rank, but not torchrun."""
        [rank] = _children(self._pid)
        os.kill(rank, signal.SIGKILL)

    def cut(self) -> None:
        """Cut the power: the network goes down first, so the other node gets no message."""
        _ip("-n", self._name, "link", "set", _LINK, "down")
        self.kill()

    def mend(self) -> None:
        """Restore the network."""
        _ip("-n", self._name, "link", "set", _LINK, "up")

    def kill(self) -> None:
        """Kill torchrun and its rank."""
        if self._torchrun is not None:
            for pid in [*_children(self._pid), self._pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._torchrun.wait()

    def ended(self, timeout_s: float) -> int:
        """Wait for torchrun; return its exit status."""
        assert self._torchrun is not None
        return self._torchrun.wait(timeout_s)

    @property
    def _pid(self) -> int:
        assert self._torchrun is not None
        return self._torchrun.pid


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Make two nodes that reach only each other.

    Raises:
        PermissionError: The process lacks the permission, or iproute2 is missing.
    """
    first, second = (f"penstock-{os.getpid()}-{letter}" for letter in "ab")
    nodes = tuple(
        Node(name, f"10.77.0.{number}", folder / f"node-{number}.log")
        for number, name in enumerate((first, second), start=1)
    )
    try:
        try:
            _ip("netns", "add", first)
            _ip("netns", "add", second)
            peer = ["peer", "name", _LINK, "netns", second]
            _ip("link", "add", _LINK, "netns", first, "type", "veth", *peer)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PermissionError(str(error)) from error
        for number, name in enumerate((first, second), start=1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", _LINK)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", _LINK, "up")
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.kill()
        for name in (first, second):
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "del", name)


def wait_for_step(outputs: Path, step: int, timeout_s: float) -> None:
    """Wait until a run has written the metrics of a step."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for file in outputs.glob("*/*/metrics.csv"):
            last = file.read_text().rpartition("\n")[0].rpartition("\n")[2].partition(",")[0]
            if last.isdigit() and int(last) >= step:
                return
        time.sleep(0.02)
    raise TimeoutError(f"no step {step} in {outputs} within {timeout_s:g} s")


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in found.split()]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)

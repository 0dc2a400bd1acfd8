"""A connection to a cluster of Ray, which is an extra."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.machine_cache import computed_once, files_received, signature_of
from penstock.core.user_errors import ExplainedError, is_explained

_ANSWER_S = 10.0
_PIECE_BYTES = 16 << 20
_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_", "HF_")

_connected_in: int | None = None  # a process


def connected(needs_it: str) -> Any:
    """The module ``ray``, connected to a cluster.

    That is the cluster of ``RAY_ADDRESS``, else one that is started here and ends with this
    process. (Ray by itself would look for one that ran here last, and wait for minutes where that
    is gone.)

    Args:
        needs_it: The setting that asks for it, for messages.

    Raises:
        ValueError: Ray is not installed.
        ExplainedError: The cluster does not answer, or this process is a fork of the connected one.
    """
    global _connected_in
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError(
            f"{needs_it} needs the package ray; run: pip install 'penstock[ray]'"
        ) from None
    if ray.is_initialized() and _connected_in not in (None, os.getpid()):
        raise ExplainedError(
            f"{needs_it}: process {os.getpid()} is a fork of process {_connected_in}, whose "
            f"connection to Ray ends at a fork; start it by multiprocessing's spawn, or use "
            f"loader=threads in it"
        )
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        try:
            _ask(address)
            ray.init(address=address, logging_level=logging.WARNING)
        except OSError as error:
            if address == "local":
                raise
            raise ExplainedError(
                f"RAY_ADDRESS={address}: no cluster answers there ({in_one_line(error)}); start "
                f"one by `ray start --head`, or unset RAY_ADDRESS for one of this machine alone"
            ) from None
    _connected_in = os.getpid()
    return ray


def _ask(address: str) -> None:
    """Find out whether somebody answers at a host and port, which Ray waits for minutes for.

    Raises:
        OSError: Nobody does.
    """
    if address == "auto":
        # Where `ray start` leaves it, also when that cluster is gone.
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        with suppress(OSError):
            address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # no local, no URL
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Surroundings of a process, for work of its own in another one.

    Attributes:
        folder: Where it runs: paths of the config may be relative to it.
        variables: Those of its environment by which object stores are found, and may be read. They
            go as an argument: the environment that Ray gives a job is shown to who looks at it.
    """

    folder: str
    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process."""
        found = {name: os.environ[name] for name in os.environ if name.startswith(_OF_STORES)}
        return cls(os.getcwd(), found)

    def enter(self) -> None:
        """Make them those of this process, as far as they are there."""
        with suppress(OSError):
            os.chdir(self.folder)
        os.environ.update(self.variables)


@dataclass(frozen=True, slots=True)
class SentFiles:
    """Files of this machine's cache, which machines that do not see them fetch from here.

    Attributes:
        node: What Ray calls this machine.
        files: Size in bytes and time of change in ns, by path.
    """

    node: str
    files: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, paths: Iterable[str], needs_it: str) -> SentFiles:
        """Files of this process's machine; see `connected`."""
        node = connected(needs_it).get_runtime_context().get_node_id()
        return cls(node, {path: _mark(path) for path in paths})

    def received(self) -> AbstractContextManager[None]:
        """While entered, what is unpickled maps those of this machine, copied if they are not."""
        return files_received({path: self._place(path) for path in self.files})

    def _place(self, path: str) -> str:
        mark = self.files[path]
        with suppress(OSError):
            if _mark(path) == mark:
                return path
        copy, _ = computed_once(
            f"copy-{signature_of(path=path, mark=mark)}",
            Path(path).suffix,
            make=lambda new: self._fetch(path, new),
            load=lambda made: made if made.stat().st_size == mark[0] else None,
            what=f"copy of {path}",
        )
        return str(copy)

    def _fetch(self, path: str, new: Path) -> None:
        """Let the machine of a file read it, piece by piece: the store may be smaller."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(self.node, soft=False)
        read = ray.remote(_piece).options(num_cpus=0, scheduling_strategy=there)
        with open(new, "wb") as file:
            for start in range(0, self.files[path][0], _PIECE_BYTES):
                file.write(ray.get(read.remote(path, start)))


def _mark(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _piece(path: str, start: int) -> NDArray[np.uint8]:
    return np.fromfile(path, np.uint8, _PIECE_BYTES, offset=start)


def room_for(takes: Mapping[str, float], needs_it: str) -> int:
    """Tell how often the cluster has free, at this moment, what something takes; see `connected`.

    Args:
        takes: Amounts of resources, none of them 0.
        needs_it: The setting that asks for it, for messages.
    """
    free = connected(needs_it).available_resources()
    return int(min(free.get(name, 0) // amount for name, amount in takes.items()))


def why_not_begun(error: BaseException) -> str | None:
    """What was raised by a machine before anything of ours ran; None: that is not what happened.

    Its traceback ends the message of an error that tells so, whatever its type.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not any(line.startswith('File "') for line in lines):
        return None
    where = re.search(r"\bip=([^,)]+)", str(error))
    return (
        f"{where[1] if where else 'a machine'} cannot begin: {lines[-1]}; every machine of the "
        f"cluster needs the same penstock, with the same extras, in the Python that runs Ray"
    )


def why_not_opened(error: BaseException) -> str:
    """What work that was sent here lacks on this machine, in one line."""
    said = " ".join(str(error).split())
    said = said if is_explained(error) else f"{type(error).__name__}: {said}"
    return (
        f"the data cannot be opened on {socket.gethostname()}: {said}; every machine of the "
        f"cluster needs the same code, and the data at the same path or in an object store"
    )


def in_one_line(error: BaseException) -> str:
    """What an error of Ray says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

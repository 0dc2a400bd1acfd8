"""Connections to a Ray cluster, an optional extra."""

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
    """Return the module ``ray``, connected to the cluster at ``RAY_ADDRESS`` or a new local one.

    A local cluster ends with this process. (By default Ray looks for the last cluster on this
    machine, and waits for minutes if it is gone.) Messages name the setting `needs_it`.

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
    """Raise OSError if no server answers at the address; Ray itself would wait for minutes."""
    if address == "auto":
        # `ray start` writes the address here, and leaves it after the cluster ends.
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        with suppress(OSError):
            address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # neither "local" nor a URL
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The working directory and credentials of a process, for its tasks on other machines.

    Attributes:
        folder: The working directory, to which paths of the config may be relative.
        variables: Environment variables for object stores, which may hold credentials. Pass them
            as an argument: Ray shows a job's environment to everyone.
    """

    folder: str
    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def here(cls) -> Surroundings:
        """Return the surroundings of this process."""
        found = {name: os.environ[name] for name in os.environ if name.startswith(_OF_STORES)}
        return cls(os.getcwd(), found)

    def enter(self) -> None:
        """Apply the surroundings to this process; skip a missing folder."""
        with suppress(OSError):
            os.chdir(self.folder)
        os.environ.update(self.variables)


@dataclass(frozen=True, slots=True)
class SentFiles:
    """Files of this machine's cache, which other machines copy if they cannot see them.

    Attributes:
        node: Ray's id of this machine.
        files: Size in bytes and modification time in ns, by path.
    """

    node: str
    files: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, paths: Iterable[str], needs_it: str) -> SentFiles:
        """Describe files of this process's machine; see `connected`."""
        node = connected(needs_it).get_runtime_context().get_node_id()
        return cls(node, {path: _mark(path) for path in paths})

    def received(self) -> AbstractContextManager[None]:
        """Return a context in which unpickled objects map the local file or a local copy."""
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
        """Copy a file in pieces, which its machine reads; Ray's object store may be small."""
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
    """Return how many times the free resources of the cluster cover `takes`, amounts above 0."""
    free = connected(needs_it).available_resources()
    return int(min(free.get(name, 0) // amount for name, amount in takes.items()))


def why_not_begun(error: BaseException) -> str | None:
    """Explain an error that a machine raised before our code ran, or return None.

    The message of such an error, of any type, ends with a traceback.
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
    """Explain in one line why a sent task cannot open its data on this machine."""
    said = " ".join(str(error).split())
    said = said if is_explained(error) else f"{type(error).__name__}: {said}"
    return (
        f"the data cannot be opened on {socket.gethostname()}: {said}; every machine of the "
        f"cluster needs the same code, and the data at the same path or in an object store"
    )


def in_one_line(error: BaseException) -> str:
    """Return the first line of a Ray error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

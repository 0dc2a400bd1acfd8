"""Calls of a function on the machines of a Ray cluster, an optional extra."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from penstock.core.machine_cache import files_sent
from penstock.core.user_errors import ExplainedError, is_explained

_ANSWER_S = 10.0
_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_", "HF_")


def connected() -> Any:
    """Return the module ``ray``, connected to the cluster at ``RAY_ADDRESS`` or a new local one.

    A local cluster ends with this process. Raise ExplainedError if the cluster does not answer.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("no package ray; run: pip install 'penstock[ray]'") from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        host, _, port = address.rpartition(":")
        try:
            if host and port.isdigit():  # Ray itself would wait for minutes
                socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
            ray.init(address=address, logging_level=logging.WARNING)
        except OSError as error:
            raise ExplainedError(
                f"RAY_ADDRESS={address}: no cluster answers there ({error}); start one by `ray "
                f"start --head`, or unset RAY_ADDRESS for one of this machine alone"
            ) from None
    return ray


class RayCalls:
    """Calls ``function(value, *arguments)`` on any machine with room.

    A process of the cluster unpickles the value once. `takes` are the resources of a call by name;
    by default one core.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        pickled: Callable[[], bytes],
        takes: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.ray = connected()
        with files_sent():
            value = self.ray.put(pickled())
        others = {name: amount for name, amount in takes.items() if name != "CPU"}
        cores = takes.get("CPU", 1)
        options = {"num_cpus": cores, "resources": others, "scheduling_strategy": "SPREAD"}
        self._call = self.ray.remote(_call).options(**options, max_retries=0)
        # Credentials are an argument, since Ray shows a job's environment to everyone.
        variables = {name: os.environ[name] for name in os.environ if name.startswith(_OF_STORES)}
        self._origin = function, value, os.getcwd(), variables

    def begin(self, *arguments: Any) -> Any:
        """Begin a call; return a reference to its result."""
        return self._call.remote(self._origin, arguments)

    def why_ended(self, error: BaseException) -> str | None:
        """Describe how a call's process or machine ended; None for an error of our code.

        Raise ExplainedError if the value could not be opened there.
        """
        if isinstance(cause := getattr(error, "cause", None), ExplainedError):
            raise cause from None
        if not isinstance(error, self.ray.exceptions.RayError):
            return None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if any(line.startswith('File "') for line in lines):  # Ray failed before our code ran
            return f"{lines[-1]}; every machine of the cluster needs the same penstock and extras"
        return lines[0]

    def end(self, answer: Any) -> None:
        """Cancel a call, and kill its process."""
        with suppress(Exception):  # the cluster may be gone
            self.ray.cancel(answer, force=True)


def _call(origin: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    function, value, folder, variables = origin
    with suppress(OSError):  # paths of the config may be relative to it
        os.chdir(folder)
    os.environ.update(variables)
    return function(_opened(value), *arguments)


@lru_cache(maxsize=4)
def _opened(value: Any) -> Any:
    import ray

    try:
        return pickle.loads(ray.get(value))
    except Exception as error:
        said = " ".join(str(error).split())
        said = said if is_explained(error) else f"{type(error).__name__}: {said}"
        raise ExplainedError(
            f"the data cannot be opened on {socket.gethostname()}: {said}; every machine of the "
            f"cluster needs the same code, and the data at the same path or in an object store"
        ) from None

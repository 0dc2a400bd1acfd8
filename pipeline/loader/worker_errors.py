"""Errors of workers on their way to the consumer: exceptions, deaths and timeouts."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import traceback
from dataclasses import dataclass

from penstock.core.processes import ending_of
from penstock.core.user_errors import ExplainedError, WorkerTraceback, is_explained


class LoaderTimeoutError(ExplainedError):
    """No batch arrived in time."""


class LoaderClosedError(RuntimeError):
    """The loader was closed while another thread waited for a batch."""

    def __init__(self) -> None:
        super().__init__("loader: it was closed while another thread waited for a batch")


class WorkerError(ExplainedError):
    """A worker died, or raised an exception that does not pickle."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way from a worker to the consumer."""

    error: BaseException
    text: str
    explained: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the exception and its traceback as text, in a form that pickles."""
        explained = is_explained(error)
        lines = "".join(traceback.format_exception(error))
        text = f'in worker process {os.getpid()}:\n"""\n{lines}"""'
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            notes = "; ".join(getattr(error, "__notes__", []))
            error = WorkerError(f"{type(error).__name__}: {error} ({notes})")
        return cls(error, text, explained)

    def exception(self) -> BaseException:
        """Return the exception, with the worker's traceback as its cause unless it is explained."""
        if not self.explained:
            self.error.__cause__ = WorkerTraceback(self.text)
        return self.error


def describe_death(pid: int | None, code: int | None) -> str:
    """Describe in one line how a worker process ended, from its exit code."""
    how = "ended" if code is None else f"ended with {ending_of(code)}"
    unknown = "see its traceback above, if any; if it could not start, try loader.engine=inline"
    if code is None or code < 0:
        unknown = "another program ended it"
    return f"loader: worker process {pid} {how}; {_CAUSES.get(code, unknown)}"


_LESS = "lower loader.num_workers, loader.prefetch_factor or loader.batch_size"
_CRASH = "a native library crashed, often over one damaged file: find it with loader.engine=inline"
_CAUSES: dict[int | None, str] = {
    -signal.SIGKILL: f"often the system ran out of memory: {_LESS}",
    -signal.SIGBUS: f"often /dev/shm is full: enlarge it (docker run --shm-size=8g) or {_LESS}",
    -signal.SIGSEGV: _CRASH,
    -signal.SIGABRT: _CRASH,
    errno.ENOMEM: f"it got no memory (MemoryError): {_LESS}",
}

"""Errors of users, of code and of the machine."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_OURS = tuple(f"{_ROOT / room}/" for room in ("core", "datasets", "transforms", "pipeline"))
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EBADF EIO EAGAIN EINTR ESTALE ETIMEDOUT EREMOTEIO EHOSTDOWN EHOSTUNREACH ENETDOWN "
        "ENETUNREACH ENETRESET ECONNRESET ECONNREFUSED ECONNABORTED ENOTCONN EPIPE EBUSY ENOMEM "
        "EMFILE ENFILE"
    ).split()
)
_NO_MEMORY = ("out of memory", "insufficient memory", "not enough memory", "allocate memory")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a config: its full key, or an empty string, and a message.

    The message is one line: the value, the expected value, and how to fix it.
    """

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the most similar of `names`, or None below `cutoff`."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def listing(names: Iterable[str], limit: int = 12) -> str:
    """List names in one line, cut after `limit` of them."""
    known = list(names)
    if len(known) > limit:
        return ", ".join(known[:limit]) + f", ... ({len(known)} in all)"
    return ", ".join(known)


def nearest_path(path: str) -> str | None:
    """Return the existing path that differs from `path` in one similar name, or None."""
    whole = missing = Path(path).expanduser().absolute()
    while not missing.parent.is_dir():
        missing = missing.parent
    near = nearest(missing.name, os.listdir(missing.parent), cutoff=0.7)
    found = missing.parent / (near or "") / whole.relative_to(missing)
    return str(found) if near and found.exists() else None


class ExplainedError(RuntimeError):
    """Stops a run for a reason other than a bug; the message is complete without a traceback."""


class DiskError(ExplainedError, ValueError):
    """Stops a run or a command because the disk refuses a write."""


class WorkerTraceback(Exception):
    """Carries the traceback of a worker as text; the cause of the exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def is_trouble(error: BaseException) -> bool:
    """Whether an exception comes from the process or machine rather than from the data.

    Code that catches many exceptions to find damage re-raises these: otherwise a lack of memory
    would replace a good record.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING
    return isinstance(error, SystemError | RecursionError) or _wants_memory(error)


def is_explained(error: BaseException) -> bool:
    """Whether the message of an exception is enough for the user, without a traceback.

    True for an `ExplainedError`, a ``ValueError`` raised in our own code (a user's mistake), and a
    system error with a file name.
    """
    if isinstance(error.__cause__, WorkerTraceback):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    if isinstance(error, ExplainedError):
        return True
    trace = error.__traceback__
    if not isinstance(error, ValueError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename.startswith(_OURS)


_LOWER = (
    "lower loader.batch_size (with trainer.accumulate=2 a step has as many samples), "
    "loader.prefetch_factor or loader.num_workers; of pack, pack.num_workers or writer.part_records"
)


def in_one_line(error: BaseException) -> str | None:
    """Return a one-line message for an explained error or lack of memory, else None."""
    if is_explained(error):
        return str(error)
    wanting: BaseException | None = None
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, WorkerTraceback):
        wanting = cause if _wants_memory(cause) else wanting
        cause = cause.__cause__
    if wanting is None:
        return None
    said = " ".join(str(wanting).split())
    if "; lower " in said:  # ours
        return said
    return f"memory ran out ({said[:200] or type(wanting).__name__}); {_LOWER}"


def _wants_memory(error: BaseException) -> bool:
    """Whether memory of the process or of a device ran out."""
    said = str(error).lower()
    if isinstance(error, ImportError):  # "cannot allocate memory in static TLS block"
        return False
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)

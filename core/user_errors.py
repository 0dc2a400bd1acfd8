"""Errors of users, of code and of the machine."""

from __future__ import annotations

import difflib
import errno
import shlex
import sys
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
_NO_MEMORY = (
    "out of memory", "insufficient memory", "not enough memory", "cannot allocate memory",
    "can't allocate memory",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a config.

    Attributes:
        key: The full key, such as ``dataset.storage.path``; empty if no single key is wrong.
        message: One line: the value, the expected value, and how to fix it.
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
    """Return the most similar existing folder, or file with the same suffix."""
    there = Path()
    for part in Path(path).expanduser().parts:
        if (there / part).exists():
            there /= part
            continue
        ending = Path(part).suffix
        alike = (
            [each for each in there.iterdir() if each.suffix == ending] if there.is_dir() else []
        )
        near = nearest(part, [each.name for each in alike if ending or each.is_dir()])
        if near is None:
            return None
        there /= near
    return str(there)


class ExplainedError(RuntimeError):
    """Stops a run for a reason other than a bug; the message is complete without a traceback."""


class WorkerTraceback(Exception):
    """Carries the traceback of a worker as text; the cause of the exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def is_trouble(error: BaseException) -> bool:
    """Whether an exception comes from the process or machine rather than from the data.

    Examples are a lack of memory or descriptors, and a failed disk or network. Code that catches
    many exceptions to find damage re-raises these. Otherwise a good record would be replaced.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING
    return isinstance(error, SystemError | RecursionError) or _wants_memory(error)


def is_explained(error: BaseException) -> bool:
    """Whether the message of an exception is enough for the user.

    True for an `ExplainedError`, a ``ValueError`` raised in our own code (a user's mistake), and a
    system error with a file name. Exceptions of libraries, of users' components and of our bugs
    need a traceback.
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


_LOWER = {
    "pack": "lower pack.num_workers, or writer.part_records",
    "": "lower loader.batch_size (with trainer.accumulate=2 a step has as many samples), or "
    "loader.prefetch_factor and loader.num_workers",
}
"""Advice for out-of-memory errors by command; the empty key is for the other commands."""


def in_one_line(error: BaseException, *, command: str = "") -> str | None:
    """Return a one-line message for an explained error or lack of memory, else None.

    The message for lack of memory says how much was requested, and where. `command` is the
    command that the user typed.
    """
    if is_explained(error):
        return str(error)
    chain, cause = [error], error.__cause__
    while cause is not None and not isinstance(cause, WorkerTraceback):
        chain.append(cause)
        cause = cause.__cause__
    wanting = [each for each in chain if _wants_memory(each)]
    if not wanting:
        return None
    said = " ".join(str(wanting[-1]).split())
    if "; lower " in said:  # ours
        return said
    trace = wanting[-1].__traceback__ if cause is None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    lower = _LOWER.get(command, _LOWER[""])
    return f"memory ran out{where} ({said[:200] or type(wanting[-1]).__name__}); {lower}"


def _wants_memory(error: BaseException) -> bool:
    """Whether memory of the process or of a device ran out."""
    said = str(error).lower()
    if isinstance(error, ImportError):  # "cannot allocate memory in static TLS block"
        return False
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)


def program_of(command: str) -> str:
    """Return the program to type for `command`, in the form in which the user started this one."""
    if command == "train" and Path(sys.argv[0]).name == "train.py":
        return f"python {shlex.quote(sys.argv[0])}"
    return f"penstock {command}"

"""Errors: mistakes in a config, errors that one line explains, faults of the machine."""

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
        message: What was given, what is expected and what to type, in one line.
    """

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the name of `names` that is most similar to `name`, or None below `cutoff`."""
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
    """Return the existing folder, or file with the same suffix, that is most similar to a path."""
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
    """What stops a run and is no mistake of code: its line says all."""


class WorkerTraceback(Exception):
    """Carries the traceback of a worker as text; the cause of the exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def is_trouble(error: BaseException) -> bool:
    """Tell whether an exception is of this process or its machine, and says nothing of the data.

    Memory or descriptors ran out, a disk or a network failed, the interpreter itself did. Whoever
    finds damage by exceptions of many kinds raises these: a good record that was replaced for them
    would be another answer, and a silent one.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _PASSING
    return isinstance(error, SystemError | RecursionError) or _wants_memory(error)


def is_explained(error: BaseException) -> bool:
    """Tell whether the message of an exception says all that its reader needs.

    So it is where our own code raised ``ValueError`` (by convention a mistake in what was given:
    what, got, expected, remedy) or `ExplainedError`, and where the system refused a file. An
    exception out of a library, a user's component or a mistake of ours needs its traceback.
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
"""What to lower where memory ran out, by command; of all others the last."""


def in_one_line(error: BaseException, *, command: str = "") -> str | None:
    """Say an error in one line, where that is all that its reader needs; None: the traceback is.

    That is `is_explained`, and want of memory, which is no mistake of code either: of what wanted
    it, the line says how much and where.

    Args:
        error: What came up.
        command: The command that the user has typed.
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
    """Tell whether memory ran out: a process's own, or a device's."""
    said = str(error).lower()
    if isinstance(error, ImportError):  # "cannot allocate memory in static TLS block"
        return False
    return isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY)


def program_of(command: str) -> str:
    """Return the program to type for a command, as the user started this one.

    Args:
        command: ``train`` or one of `pipeline.commands.COMMANDS`.
    """
    if command == "train" and Path(sys.argv[0]).name == "train.py":
        return f"python {shlex.quote(sys.argv[0])}"
    return f"penstock {command}"

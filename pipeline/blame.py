"""Which exceptions a line explains, and which need their traceback."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(str(_ROOT / package) + "/" for package in ("pipeline", "datasets", "transforms"))


def is_explained(error: BaseException) -> bool:
    """Whether the message of an exception says all that its reader needs.

    So it is where our own code raised ``ValueError`` (by convention a mistake in what was given:
    what, got, expected, remedy) and where the system refused a file. An exception out of a
    library, a user's component or a mistake of ours needs its traceback.
    """
    if error.__cause__ is not None and getattr(error.__cause__, "from_worker", False):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    trace = error.__traceback__
    if not isinstance(error, ValueError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename.startswith(_OURS)

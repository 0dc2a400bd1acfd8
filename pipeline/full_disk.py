"""A disk that is full, told in a line that names the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

# What the system says of a write that was right, and says without naming the file.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def writing(path: str | os.PathLike[str], *, remedy: str = "free some space") -> Iterator[None]:
    """Name what is written, where the system refuses a write.

    Libraries hide such a refusal behind errors of their own ("unexpected pos 704 vs 598"); it is
    looked for in what came before these.

    Args:
        path: What is written, a file or a folder.
        remedy: What the user can do.

    Raises:
        ValueError: The disk is full.
    """
    try:
        yield
    except Exception as error:
        refused = _refused(error)
        if refused is None:
            raise
        raise ValueError(f"{path} cannot be written: {refused.strerror}; {remedy}") from error


def _refused(error: BaseException | None) -> OSError | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _REFUSED:
            return error
        error = error.__cause__ or error.__context__
    return None

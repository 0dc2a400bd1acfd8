"""What the Arrow library says of damaged files, told from trouble of the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class DamagedFile(Exception):
    """A file, or a group of its rows, that cannot be read; the message is the cause."""


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Raise `DamagedFile` for whatever the library finds wrong with the data.

    It raises OSError for damage too, then without an error number; one of the disk passes.
    """
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedFile(_one_line(error)) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise DamagedFile(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return f"cannot be read ({' '.join(str(error).split())[:300]})"

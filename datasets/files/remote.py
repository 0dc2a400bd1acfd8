"""Read remote files as a whole, by range, or as a stream."""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, wait
from functools import partial
from typing import Any
from urllib.parse import unquote

from penstock.core.sample import MAX_RECORD_BYTES, too_large
from penstock.core.stage_times import Traffic, counted, traffic
from penstock.datasets.files.access import MissingFile
from penstock.datasets.files.clients import (
    Answer,
    RemoteError,
    read_place,
    readers,
    side_by_side,
)
from penstock.datasets.files.reading_thread import still_wanted

_PIECE_BYTES = 8 << 20
_TICK_S = 0.2


def read_url(url: str, *, root: str | None = None, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; MissingFile if it is missing or larger than `max_bytes`."""
    folder, name = split_url(url, root)
    content = read_place(folder, name, 0, max_bytes + 1).content
    if len(content) > max_bytes:
        raise MissingFile(too_large(len(content), max_bytes))
    return content


def read_range(url: str, root: str, offset: int, size_bytes: int, mark: str | None) -> bytes:
    """Read the bytes of a range, up to the end; see `read_place` for `mark` and errors."""
    folder, name = split_url(url, root)
    stop = offset + size_bytes
    starts = range(offset, stop, _PIECE_BYTES)

    def read(start: int) -> bytes:
        return read_place(folder, name, start, min(start + _PIECE_BYTES, stop), mark).content

    return b"".join(side_by_side(read, starts))


class RemoteStream(io.RawIOBase):
    """A remote file as a stream, which prefetches the next piece; reads raise RemoteError.

    Changed content raises; without `mark`, the first piece has the expected mark.
    """

    def __init__(self, url: str, *, mark: str | None = None) -> None:
        self._url = url
        self._mark = mark
        self._size_bytes: int | None = None
        self._asked = 0
        self._ahead = self._next_piece()
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; none at the end."""
        if not self._piece and self._ahead is not None:
            while not wait([self._ahead], _TICK_S).done:
                still_wanted()
            try:
                (content, found), asked = self._ahead.result()
            except MissingFile as error:
                raise RemoteError(f"{self._url}: not there any more") from error
            traffic().add(asked)
            if self._size_bytes is None:  # the first piece has the size, which saves a request
                self._size_bytes, self._mark = found[1:] if found else (0, None)
            self._ahead = self._next_piece()
            self._piece = memoryview(content)
        taken = min(len(buffer), len(self._piece))
        buffer[:taken], self._piece = self._piece[:taken], self._piece[taken:]
        return taken

    def _next_piece(self) -> Future[tuple[Answer, Traffic]] | None:
        start = self._asked
        if self._size_bytes is not None and start >= self._size_bytes:
            return None
        self._asked += _PIECE_BYTES
        place = *split_url(self._url), start, self._asked, self._mark
        return readers(os.getpid())(partial(_read_counted, *place))


def _read_counted(*place: Any) -> tuple[Answer, Traffic]:
    """Read for another thread, and return the traffic for it to count."""
    with counted() as asked:
        return read_place(*place), asked


def split_url(url: str, root: str | None = None) -> tuple[str, str]:
    """Split a file's URL into the URL of the data set and a relative name."""
    if root is not None and url.startswith(f"{root}/"):
        folder, name = root, url[len(root) + 1 :]
    else:
        folder, _, name = url.rpartition("/")
    return folder, unquote(name) if url.startswith("http") else name

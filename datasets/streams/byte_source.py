"""Base class of sources of byte streams: files, commands, sockets, standard input."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from penstock.core.contracts import Source
from penstock.datasets.files.access import absolute_path, expand_braces
from penstock.datasets.files.byte_streams import (
    PIPE,
    STDIN,
    ByteStream,
    command_of,
    is_file,
    is_read_once,
    socket_address,
)
from penstock.datasets.files.data_files import find_data_files
from penstock.datasets.records.labels import StreamLabels


class ByteSource(Source):
    """A source whose shards are streams of bytes, named by a path.

    Attributes:
        root: The folder of the files; empty for commands and sockets.
        labels: Maps labels to class ids.

    Args:
        path: A file, a folder, or a pattern with ``*`` or ``{000..099}``, also as a URL;
            ``pipe:command``, ``tcp://host:port`` or ``unix:/path``, also with braces; or ``-``.
        endings: File endings to look for in a folder.
        classes: Class names by id, or their number; None: the lines of ``classes.txt`` in the
            folder.
        timeout_s: Maximum seconds without a byte.

    Raises:
        ValueError: No files were found.
    """

    name: str
    reads_urls = True

    def __init__(
        self,
        path: str,
        *,
        endings: Sequence[str],
        classes: Sequence[str] | int | None,
        timeout_s: float,
    ) -> None:
        self.path = path
        self.root = ""
        self._timeout_s = timeout_s
        self._marks: dict[str, tuple[int, int | str]] = {}
        names = [path] if path == STDIN else expand_braces(path)
        for name in names:
            if name.startswith(PIPE):
                command_of(name)
            elif name.startswith("tcp://"):
                socket_address(name)
        if all(map(is_file, names)):
            files = find_data_files(absolute_path(path), endings=endings, where=str(self))
            names, self.root = files.paths, files.root
            self._marks = dict(zip(names, files.marks, strict=True))
        self._names = tuple(names)
        self.reopens = not any(map(is_read_once, names))
        self.labels = StreamLabels(classes, folder=self.root)
        self.class_names = self.labels.names

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    def shards(self, epoch: int) -> Sequence[str]:
        """Return the files, commands or addresses."""
        return self._names

    def fingerprint(self) -> str:
        """Hash names and sizes; names of files without their folder."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self._names:
            known = name
            if self._marks:
                known = f"{name[len(self.root) :].lstrip('/')} {self._marks[name][0]}"
            digest.update(known.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()

    def _stream(self, shard: str) -> ByteStream:
        """Open a shard; reading raises if the file changed after it was found."""
        return ByteStream(shard, timeout_s=self._timeout_s, mark=self._marks.get(shard))

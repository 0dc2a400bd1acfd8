"""The base of sources whose shards are streams of bytes: files, commands, sockets, the input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.contracts import SourceCapabilities
from penstock.core.sample import MAX_RECORD_BYTES
from penstock.datasets.files.access import RangeFile, absolute_path, expand_braces
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


@dataclass(frozen=True, slots=True)
class FoundShards:
    """Local shards to read by place, as they were found; opens files for `OpenFiles`.

    Attributes:
        root: Their folder.
        marks: Size and mtime in ns by path.
    """

    root: str
    marks: Mapping[str, tuple[int, int | str]]

    def open(self, name: str) -> RangeFile:
        """Open a shard by its path."""
        return RangeFile(name, root=self.root, mark=self.marks.get(name))


class ByteSource:
    """A source whose shards are streams of bytes, named by a path: the base of such.

    Attributes:
        root: The folder of the files; empty where they are none.
        reopens: The shards can be read again: files and commands can.
        labels: What gives labels their class ids.
        max_record_bytes: A record that takes more is bad, and is not read.

    Args:
        path: A file, a folder, or a pattern with ``*`` or ``{000..099}``, or the URL of such;
            ``pipe:command``,
            ``tcp://host:port`` or ``unix:/path``, also with braces; or ``-``.
        endings: Endings of the files that are looked for in a folder.
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            the folder.
        timeout_s: Seconds that may pass without a byte.

    Raises:
        ValueError: Nothing is there.
    """

    name: str
    reads_urls = True
    max_record_bytes: int = MAX_RECORD_BYTES

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

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    @property
    def capabilities(self) -> SourceCapabilities:
        """Declare the names of the classes."""
        return SourceCapabilities(class_names=self.labels.names)

    def shards(self, epoch: int) -> Sequence[str]:
        """List the files, commands or addresses."""
        return self._names

    def fingerprint(self) -> str:
        """Hash names and sizes, of files without their folder."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self._names:
            known = name
            if self._marks:
                known = f"{name[len(self.root) :].lstrip('/')} {self._marks[name][0]}"
            digest.update(known.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()

    def _stream(self, shard: str) -> ByteStream:
        """Open a shard, if it is still the file that was found."""
        return ByteStream(shard, timeout_s=self._timeout_s, mark=self._marks.get(shard))

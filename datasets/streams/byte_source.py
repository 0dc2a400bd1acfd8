"""Base class of sources of byte streams: files, commands, sockets, standard input."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.contracts import Source
from penstock.datasets.files.access import absolute_path, expand_braces
from penstock.datasets.files.byte_streams import STDIN, ByteStream, is_file, is_read_once
from penstock.datasets.files.data_files import find_data_files
from penstock.datasets.records.labels import StreamLabels


class ByteSource(Source):
    """A source whose shards are streams of bytes, named by a path.

    Attributes:
        endings: File endings to look for in a folder.
        root: The folder of the files; empty for commands and sockets.
        labels: Maps labels to class ids.
    """

    name: str
    endings: tuple[str, ...]
    reads_urls = True

    def __init__(self, path: str, *, classes: Sequence[str] | int | None, timeout_s: float) -> None:
        self.path = path
        self.root = ""
        self._timeout_s = timeout_s
        self.marks: dict[str, tuple[int, int | str]] = {}
        names = [path] if path == STDIN else expand_braces(path)
        if all(map(is_file, names)):
            files = find_data_files(absolute_path(path), endings=self.endings, where=str(self))
            names, self.root = files.paths, files.root
            self.marks = dict(zip(names, files.marks, strict=True))
        self._names = tuple(names)
        self.reopens = not any(map(is_read_once, names))
        self.labels = StreamLabels(classes, folder=self.root)
        self.class_names = self.labels.names

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    def shards(self, epoch: int) -> Sequence[str]:
        return self._names

    def fingerprint(self) -> str:
        sizes = [self.marks[name][0] if self.marks else 0 for name in self._names]
        return str([(n[len(self.root) :], s) for n, s in zip(self._names, sizes, strict=True)])

    def stream(self, shard: str) -> ByteStream:
        """Open a shard; reading raises if the file changed after it was found."""
        return ByteStream(shard, timeout_s=self._timeout_s, mark=self.marks.get(shard))

"""The shards that a path names: files, commands, sockets or the standard input."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence

from datasets.braces import expand_braces
from datasets.data_files import find_data_files
from datasets.formats.byte_streams import (
    STDIN,
    ByteStream,
    is_file,
    is_read_once,
    socket_address,
)
from datasets.formats.piped_commands import PIPE, command_of


class ByteShards:
    """Shards as streams of bytes.

    Args:
        path: A file, a folder, or a pattern with ``*`` or ``{000..099}``; ``pipe:command``,
            ``tcp://host:port`` or ``unix:/path``, also with braces; or ``-``.
        endings: Endings of the files that are looked for in a folder.
        timeout_s: Seconds that may pass without a byte.
        where: The source, for messages.

    Raises:
        ValueError: Nothing is there.
    """

    def __init__(self, path: str, *, endings: Sequence[str], timeout_s: float, where: str) -> None:
        self.timeout_s = timeout_s
        names = [path] if path == STDIN else expand_braces(path)
        self.root = ""
        self._sizes: list[int] = []
        for name in names:
            if name.startswith(PIPE):
                command_of(name)
            elif name.startswith("tcp://"):
                socket_address(name)
        if all(map(is_file, names)):
            files = find_data_files(os.path.abspath(path), endings=endings, where=where)
            names, self.root = files.paths, files.root
            self._sizes = [size for size, _ in files.marks]
        self.names = tuple(names)
        self.reopens = not any(map(is_read_once, names))

    def open(self, name: str) -> ByteStream:
        """Open one of `names`."""
        return ByteStream(name, timeout_s=self.timeout_s)

    def fingerprint(self) -> str:
        """Hash of names and sizes, of files without their folder."""
        digest = hashlib.blake2b(digest_size=16)
        for number, name in enumerate(self.names):
            known = name
            if self._sizes:
                known = f"{os.path.relpath(name, self.root)} {self._sizes[number]}"
            digest.update(known.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()


def missing_path(path: str) -> bool:
    """Whether a path plainly names a file or folder, and that is not there."""
    plain = is_file(path) and not glob.has_magic(path) and expand_braces(path) == [path]
    return plain and not os.path.exists(os.path.expanduser(path))

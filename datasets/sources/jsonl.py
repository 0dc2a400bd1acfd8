"""Lines of JSON objects as a stream, with images in files beside them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.files.byte_streams import ByteStream, DamagedBytes
from penstock.datasets.files.data_files import safe_path
from penstock.datasets.streams.byte_source import ByteSource
from penstock.datasets.streams.lanes import ShardItems

_MOST_LINE_BYTES = 1 << 26
_RESERVED = ("key", "index", "position")


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line that has not been parsed.

    Attributes:
        key: Name of the shard and number of the line.
        line: The line.
    """

    key: str
    line: bytes


@register("source", "jsonl")
class JsonlSource(ByteSource):
    """JSON objects, one a line: their items are the fields of records.

    A field of `paths` names a file and becomes its content. The key of a record is its item
    ``key``, else the first of its paths, else the number of its line; which split it is in is
    settled by the name of its shard and the number of its line.

    Args:
        path: A ``.jsonl`` or ``.jsonl.gz`` file, a folder of them, a pattern with ``*`` or
            ``{000..099}``; ``pipe:command``, ``tcp://host:port``, ``unix:/path``; or ``-``.
        root: The folder that paths are relative to and must not leave; None: that of the files.
        paths: Fields that name files.
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            the folder.
        timeout_s: Seconds that a command or a socket may take for its next byte.
    """

    name = "jsonl"

    def __init__(
        self,
        path: str,
        *,
        root: str | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        super().__init__(
            path, endings=(".jsonl", ".jsonl.gz"), classes=classes, timeout_s=timeout_s
        )
        self._paths = tuple(paths)
        self._files = os.path.abspath(root or self.root or os.curdir)

    def open(self, shard: str) -> ShardItems:
        """Read a shard."""
        stream = self._stream(shard)
        lines = _lines(stream, os.path.relpath(shard, self.root) if self.root else shard)
        return ShardItems(lines, close=stream.close)

    def load(self, item: JsonLine) -> Record | BadRecord:
        """Make the record of a line; one that is damaged, or lacks a file, is a bad record."""
        try:
            fields = parse_json(item.line)
            if not isinstance(fields, dict):
                raise ValueError(f"the line holds {type(fields).__name__}, expected an object")
            named = [name for name in self._paths if isinstance(fields.get(name), str)]
            key = str(fields.get("key") or (fields[named[0]] if named else item.key))
            key.encode("utf-8", "surrogateescape")  # a key goes into files
            fields = {name: value for name, value in fields.items() if name not in _RESERVED}
            for name in named:
                file = safe_path(
                    self._files, fields[name], follow_symlinks=False, setting="dataset.source.root"
                )
                fields[name] = read_file(file, root=self._files, max_bytes=self.max_record_bytes)
            if "label" in fields:
                fields["label"] = self.labels.id_of(fields["label"])
        except (ValueError, MissingFile) as error:
            return BadRecord(-1, item.key, " ".join(str(error).split()))
        return Record(-1, key, fields)


def _lines(stream: ByteStream, name: str) -> Iterator[JsonLine | BadRecord]:
    """Read the lines of a shard that are not empty; a bad record where damage ends it."""
    for number in itertools.count(1):
        key = f"{name}:{number}"
        try:
            line = stream.readline(_MOST_LINE_BYTES)
        except DamagedBytes as error:
            cause = f"{error}; what comes behind it in this shard is lost"
            yield BadRecord(-1, key, cause, ends_shard=True)
            return
        if not line:
            return
        if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
            cause = (
                f"no line ends within {_MOST_LINE_BYTES:,} bytes; this is no JSONL, and what comes "
                f"behind it in this shard is lost"
            )
            yield BadRecord(-1, key, cause, ends_shard=True)
            return
        if line.strip():
            yield JsonLine(key, line)

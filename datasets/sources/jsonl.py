"""Lines of JSON objects as a stream, with images in files beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt

from datasets.byte_shards import ByteShards
from datasets.file_reader import MissingFile, read_file
from datasets.formats.byte_streams import ByteStream, DamagedBytes
from datasets.inside import inside
from datasets.sample import BadRecord, Record
from datasets.stream_labels import StreamLabels
from pipeline.registry import register

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
class JsonlSource:
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

    def __init__(
        self,
        path: str,
        *,
        root: str | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        self.path = path
        self._shards = ByteShards(
            path, endings=(".jsonl", ".jsonl.gz"), timeout_s=timeout_s, where=str(self)
        )
        self._labels = StreamLabels(classes, folder=self._shards.root)
        self._paths = tuple(paths)
        self._root = os.path.abspath(root or self._shards.root or os.curdir)

    def __str__(self) -> str:
        return f"jsonl {self.path}"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label."""
        return self._labels.names

    @property
    def reopens(self) -> bool:
        """Whether the lines can be read again: files and commands can."""
        return self._shards.reopens

    def shards(self, epoch: int) -> Sequence[str]:
        """The files."""
        return self._shards.names

    def open(self, shard: str) -> JsonLines:
        """Read a file."""
        root = self._shards.root
        return JsonLines(self._shards.open(shard), os.path.relpath(shard, root) if root else shard)

    def load(self, item: JsonLine) -> Record | BadRecord:
        """The record of a line; one that is damaged, or lacks a file, is a bad record."""
        try:
            fields = json.loads(item.line)
            if not isinstance(fields, dict):
                raise ValueError(f"the line holds {type(fields).__name__}, expected an object")
            named = [name for name in self._paths if isinstance(fields.get(name), str)]
            key = str(fields.get("key") or (fields[named[0]] if named else item.key))
            fields = {name: value for name, value in fields.items() if name not in _RESERVED}
            for name in named:
                file = inside(self._root, fields[name], follow_symlinks=False)
                fields[name] = read_file(file, root=self._root)
            if "label" in fields:
                fields["label"] = self._labels.id_of(fields["label"])
        except (ValueError, RecursionError, MissingFile) as error:
            return BadRecord(-1, item.key, " ".join(str(error).split()))
        return Record(-1, key, fields)

    def fingerprint(self) -> str:
        """Hash of the files' names and sizes, or of the commands."""
        return self._shards.fingerprint()


class JsonLines:
    """The lines of a stream that are not empty.

    Args:
        stream: Its bytes; closed with this.
        name: The shard's name, for keys.
    """

    def __init__(self, stream: ByteStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._number = 0
        self._ended = False

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> JsonLine | BadRecord:
        """The next line; a bad record where damage ends the shard."""
        while not self._ended:
            key = f"{self._name}:{self._number + 1}"
            try:
                line = self._stream.readline(_MOST_LINE_BYTES)
            except DamagedBytes as error:
                self._ended = True
                cause = f"{error}; what comes behind it in this shard is lost"
                return BadRecord(-1, key, cause, ends_shard=True)
            if not line:
                break
            self._number += 1
            if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
                self._ended = True
                return BadRecord(
                    -1, key, f"no line ends within {_MOST_LINE_BYTES:,} bytes; this is no JSONL, "
                    f"and what comes behind it in this shard is lost", ends_shard=True,
                )  # fmt: skip
            if line.strip():
                return JsonLine(key, line)
        raise StopIteration

    def skip(self, count: int) -> int:
        """Pass over so many lines; how many there were."""
        for passed in range(count):
            if next(self, None) is None:
                return passed
        return count

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

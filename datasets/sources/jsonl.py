"""Stream lines of JSON objects, with images in files beside them."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.byte_streams import ByteStream, StreamError, is_socket
from penstock.datasets.streams.byte_source import ByteSource
from penstock.datasets.streams.messages import JsonFields, stable_key

_log = logging.getLogger(__name__)

_MOST_LINE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class JsonLine:
    """An unparsed line.

    Attributes:
        place: Name of the shard and number of the line.
        paths: Fields whose path may be its key.
    """

    place: str
    line: bytes
    paths: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the key by which the line is split, independent of its place."""
        return stable_key(self.line, self.paths)


@register("source", "jsonl")
class JsonlSource(ByteSource):
    """JSON objects, one a line: their items are the fields of records.

    A field of `paths` names a file and becomes its content. The key of a record is its item
    ``key``, else the first of its paths, else its shard and line number. That item or path
    decides the split; without these the text of the line does, because a command may
    write its lines in another order each time.

    Args:
        path: A ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` file, a folder of them, a pattern with
            ``*`` or ``{000..099}``; ``pipe:command``, ``tcp://host:port`` or ``unix:/path``; or
            ``-``, the standard input.
        root: The folder that paths are relative to and must not leave; None: the files' folder.
        paths: Fields that name files.
        base64: Fields that hold bytes, in base64.
        classes: Class names by id, or their number; None: the lines of ``classes.txt`` in the
            folder.
        timeout_s: Maximum seconds that a command or a socket may take for its next byte.
        reconnects: Number of times to reconnect to a socket that ended, broke off or sent no byte
            for `timeout_s`. Data sent meanwhile and a truncated line are lost.
    """

    name = "jsonl"

    def __init__(
        self,
        path: str,
        *,
        root: str | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        base64: list[str] = [],  # noqa: B006
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
        reconnects: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(
            path,
            endings=(".jsonl", ".jsonl.gz", ".jsonl.zst"),
            classes=classes,
            timeout_s=timeout_s,
        )
        if reconnects and not is_socket(path):
            raise ValueError(
                f"dataset.source.reconnects: {reconnects} given, but {path!r} is a file; "
                f"leave it out"
            )
        self._reconnects = reconnects
        self._json = JsonFields(
            paths=paths, base64=base64, root=root or self.root or os.curdir, labels=self.labels
        )

    def read(self, shard: str, start: int) -> Generator[JsonLine | BadRecord]:
        """Read the lines of a shard."""
        name = os.path.relpath(shard, self.root) if self.root else shard
        for connection in range(self._reconnects + 1):
            try:
                with closing(self._stream(shard)) as stream:
                    where = f"{name}#{connection}" if connection else name
                    yield from _lines(stream, where, self._json.key_paths)
            except StreamError as error:
                if connection == self._reconnects:
                    raise
                _log.warning("%s; connecting again", error)

    def load(self, item: JsonLine) -> Record | BadRecord:
        """Make the record of a line; a damaged line or a missing file makes a bad record."""
        return self._json.record(item.place, item.line, max_bytes=self.max_record_bytes)


def _lines(stream: ByteStream, name: str, paths: tuple[str, ...]) -> Iterator[JsonLine | BadRecord]:
    """Yield the non-empty lines of a shard; damage that ends it gives a bad record."""
    for number in itertools.count(1):
        key = f"{name}:{number}"
        try:
            line = stream.readline(_MOST_LINE_BYTES)
        except RecordError as error:
            cause = f"{error}; the rest of this shard is lost"
            yield BadRecord(-1, key, cause, ends_shard=True)
            return
        if not line:
            return
        if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
            cause = (
                f"no line ends within {_MOST_LINE_BYTES:,} bytes; this is not JSONL, and the "
                f"rest of this shard is lost"
            )
            yield BadRecord(-1, key, cause, ends_shard=True)
            return
        if stream.may_break_off and not line.endswith(b"\n"):
            _refuse_cut(line, stream.name)
        if line.strip():
            yield JsonLine(key, line, paths)


def _refuse_cut(line: bytes, name: str) -> None:
    """Refuse a truncated last line of a command or a socket."""
    try:
        parse_json(line)
    except ValueError as error:
        raise StreamError(
            f"{name}: ended in the middle of a line: it broke off; what was to come behind it is "
            f"not known"
        ) from error

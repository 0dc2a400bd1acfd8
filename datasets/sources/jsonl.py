"""Stream lines of JSON objects, with images in files beside them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator
from contextlib import closing, suppress
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.json_text import parse_json
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.streams.byte_source import ByteSource
from penstock.datasets.streams.messages import JsonFields, named_key

_MOST_LINE_BYTES = 1 << 26


class JsonLine(NamedTuple):
    """An unparsed line; `place` is the shard and the line's number, `paths` may hold its key."""

    place: str
    line: bytes
    paths: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the key by which the line is split, independent of its place."""
        text = self.line.strip().decode("utf-8", "backslashreplace")
        with suppress(ValueError):  # the text identifies a damaged line
            return named_key(parse_json(self.line), self.paths) or text
        return text


@register("source", "jsonl")
class JsonlSource(ByteSource):
    """JSON objects, one a line: their items are the fields of records.

    A field of `paths` names a file and becomes its content. The key of a record is its item
    ``key``, else the first of its paths, else its shard and line number. That item or path
    decides the split; without these the text of the line does, because a command may
    write its lines in another order each time.

    Args:
        path: A ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` file, a folder of them, a pattern with
            ``*`` or ``{000..099}``; ``pipe:command`` or ``tcp://host:port``; or
            ``-``, the standard input.
        root: The folder that paths are relative to and must not leave; None: the files' folder.
        paths: Fields that name files.
        base64: Fields that hold bytes, in base64.
        classes: Class names by id, or their number; None: the lines of ``classes.txt`` in the
            folder.
        timeout_s: Maximum seconds that a command or a socket may take for its next byte.
    """

    name = "jsonl"
    endings = (".jsonl", ".jsonl.gz", ".jsonl.zst")

    def __init__(
        self,
        path: str,
        *,
        root: str | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        base64: list[str] = [],  # noqa: B006
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        super().__init__(path, classes=classes, timeout_s=timeout_s)
        self._json = JsonFields(
            paths=paths, base64=base64, root=root or self.root or os.curdir, labels=self.labels
        )

    def read(self, shard: str, start: int) -> Generator[JsonLine | BadRecord]:
        name = os.path.relpath(shard, self.root) if self.root else shard
        with closing(self.stream(shard)) as stream:
            for number in itertools.count(1):
                place = f"{name}:{number}"
                try:
                    line = stream.readline(_MOST_LINE_BYTES)
                    if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
                        raise RecordError(f"no line ends within {len(line):,} bytes, not JSONL")
                except RecordError as error:
                    cause = f"{error}; the rest of this shard is lost"
                    yield BadRecord(-1, place, cause, ends_shard=True)
                    return
                if not line:
                    return
                if line.strip():
                    yield JsonLine(place, line, self._json.paths)

    def load(self, item: JsonLine) -> Record | BadRecord:
        return self._json.record(item.place, item.line, max_bytes=self.max_record_bytes)

"""Make records from messages of queues and lines of JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.core.contracts import Source
from penstock.core.json_text import parse_json
from penstock.core.sample import BadRecord, Record, too_large
from penstock.datasets.files.access import MissingFile, absolute_path, read_file
from penstock.datasets.files.data_files import safe_path
from penstock.datasets.records.labels import StreamLabels

_RESERVED = ("key", "index", "position")


class JsonFields:
    """Reads the fields of records in JSON objects.

    Args:
        paths: Fields that name files below `root`; each becomes the file's content.
        base64: Fields that hold bytes, in base64.
    """

    def __init__(
        self, *, paths: Sequence[str], base64: Sequence[str], root: str, labels: StreamLabels
    ) -> None:
        self._base64 = tuple(base64)
        self.paths = tuple(name for name in paths if name not in base64)
        self._root = absolute_path(root)
        self._labels = labels

    def record(self, key: str, text: bytes, *, max_bytes: int) -> Record | BadRecord:
        """Make the record of a JSON object; damage or a missing file makes a bad record.

        `key` is for an object without a key of its own, see `named_key`.
        """
        try:
            found = parse_json(text)
            name = named_key(found, self.paths) or key
            fields: dict[str, Any] = {}
            for field, value in found.items():
                if field in _RESERVED:
                    continue
                if isinstance(value, str) and field in self._base64:
                    value = base64.b64decode(value, validate=True)
                elif isinstance(value, str) and field in self.paths:
                    setting = "dataset.source.root"
                    file = safe_path(self._root, value, setting=setting)
                    value = read_file(file, root=self._root, max_bytes=max_bytes)
                fields[field] = self._labels.id_of(value) if field == "label" else value
        except (ValueError, MissingFile) as error:
            return BadRecord(-1, key, " ".join(str(error).split()))
        return Record(-1, name, fields)


def named_key(found: Any, paths: Sequence[str]) -> str | None:
    """Return the key in an object: its item ``key``, or the first of its `paths`, or None.

    ValueError for other values, and for a key that is not text.
    """
    if not isinstance(found, dict):
        raise ValueError(f"it holds {type(found).__name__}, expected an object")
    values = (found.get(name) for name in paths)
    key = found.get("key")
    if key in (None, ""):
        key = next((path for path in values if isinstance(path, str)), None)
    if key is not None:
        str(key).encode("utf-8", "surrogateescape")  # a key goes into files
    return None if key is None else str(key)


class Message(NamedTuple):
    """An unparsed message of a queue, with its own key and its headers."""

    key: str
    value: bytes
    own_key: Any
    headers: Mapping[str, Any]


class MessageSource(Source):
    """A source whose items are messages: each is a JSON object, or the bytes of one field."""

    def __init__(
        self,
        *,
        value: str,
        label: str | None,
        classes: Sequence[str] | int | None,
        paths: Sequence[str],
        base64: Sequence[str],
        root: str,
    ) -> None:
        self._value, self._label = value, label
        self._labels = StreamLabels(classes)
        self._json = JsonFields(paths=paths, base64=base64, root=root, labels=self._labels)
        self.class_names = self._labels.names

    def load(self, item: Message) -> Record | BadRecord:
        if len(item.value) > self.max_record_bytes:
            return BadRecord(-1, item.key, too_large(len(item.value), self.max_record_bytes))
        made: Record | BadRecord = Record(-1, item.key, {self._value: item.value})
        if self._value == "json":
            made = self._json.record(item.key, item.value, max_bytes=self.max_record_bytes)
        if self._label is None or isinstance(made, BadRecord):
            return made
        label = item.own_key if self._label == "key" else item.headers.get(self._label)
        try:
            if label is None:
                raise ValueError(f"the message lacks {self._label!r}, which should hold the label")
            text = label.decode() if isinstance(label, bytes) else str(label)
            number = int(text) if text.isdecimal() and len(text) < 19 else text
            made.fields["label"] = self._labels.id_of(number)
        except ValueError as error:
            return BadRecord(-1, item.key, " ".join(str(error).split()))
        return made

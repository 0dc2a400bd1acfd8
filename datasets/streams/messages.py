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

RESERVED = ("key", "index", "position")
"""Items that the framework sets."""


class JsonFields:
    """Reads the fields of records in JSON objects.

    Args:
        paths: Fields that name files; each becomes the file's content.
        base64: Fields that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        labels: Maps labels to class ids.

    Attributes:
        key_paths: Fields whose path is the key of an object without an item ``key``.
    """

    def __init__(
        self, *, paths: Sequence[str], base64: Sequence[str], root: str, labels: StreamLabels
    ) -> None:
        self._paths, self._base64 = tuple(paths), tuple(base64)
        self.key_paths = tuple(name for name in paths if name not in base64)
        self._root = absolute_path(root)
        self._labels = labels

    def record(self, key: str, text: bytes, *, max_bytes: int) -> Record | BadRecord:
        """Make the record of a JSON object; damage or a missing file makes a bad record.

        `key` is for an object without a key of its own, see `named_key`.
        """
        try:
            fields = parse_json(text)
            if not isinstance(fields, dict):
                raise ValueError(f"it holds {type(fields).__name__}, expected an object")
            texts = {name for name, value in fields.items() if isinstance(value, str)}
            coded = [name for name in self._base64 if name in texts]
            named = [name for name in self._paths if name in texts and name not in coded]
            name = named_key(fields, self.key_paths) or key
            name.encode("utf-8", "surrogateescape")  # a key goes into files
            fields = {field: value for field, value in fields.items() if field not in RESERVED}
            for field in coded:
                fields[field] = base64.b64decode(fields[field], validate=True)
            for field in named:
                file = safe_path(
                    self._root, fields[field], follow_symlinks=False, setting="dataset.source.root"
                )
                fields[field] = read_file(file, root=self._root, max_bytes=max_bytes)
            if "label" in fields:
                fields["label"] = self._labels.id_of(fields["label"])
        except (ValueError, MissingFile) as error:
            return BadRecord(-1, key, " ".join(str(error).split()))
        return Record(-1, name, fields)


def named_key(fields: dict[str, Any], paths: Sequence[str]) -> str | None:
    """Return the key in an object: its item ``key``, or the first of its `paths`, or None."""
    found = (fields.get(name) for name in paths)
    key = fields.get("key") or next((path for path in found if isinstance(path, str)), None)
    return None if key is None else str(key)


def stable_key(text: bytes, paths: Sequence[str]) -> str:
    """Return a key independent of the object's place: `named_key`, or else its text."""
    try:
        fields = parse_json(text)
        if isinstance(fields, dict) and (key := named_key(fields, paths)):
            key.encode("utf-8", "surrogateescape")
            return key
    except ValueError:
        pass  # the text identifies a damaged object
    return text.strip().decode("utf-8", "backslashreplace")


class Message(NamedTuple):
    """An unparsed message of a queue, with the bytes of its label if any."""

    key: str
    value: bytes
    label: bytes | None = None


class MessageSource(Source):
    """A source whose items are messages: each is a JSON object, or the bytes of one field.

    Args:
        value: ``json``, or the name of the field that a message holds.
        label: The place of the label: ``key``, or the name of a header; None: among the fields.
        classes: Class names by id, or their number; None: labels are ids.
        paths: Fields of objects that name files.
        base64: Fields of objects that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
    """

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
        if value in RESERVED or not value:
            raise ValueError(
                f"dataset.source.value: {value!r} cannot name a field; type "
                f"dataset.source.value=image, or json"
            )
        self._value, self._label = value, label
        self._labels = StreamLabels(classes)
        self._json = JsonFields(paths=paths, base64=base64, root=root, labels=self._labels)
        self.class_names = self._labels.names

    def load(self, item: Message) -> Record | BadRecord:
        """Make the record of a message; a damaged or large message is a bad record."""
        if len(item.value) > self.max_record_bytes:
            return BadRecord(-1, item.key, too_large(len(item.value), self.max_record_bytes))
        made: Record | BadRecord = Record(-1, item.key, {self._value: item.value})
        if self._value == "json":
            made = self._json.record(item.key, item.value, max_bytes=self.max_record_bytes)
        if item.label is not None and isinstance(made, Record):
            try:
                text = item.label.decode()
                label = int(text) if text.isdecimal() and len(text) < 19 else text
                made.fields["label"] = self._labels.id_of(label)
            except ValueError as error:
                return BadRecord(-1, item.key, " ".join(str(error).split()))
        return made


def labelled(
    key: str, value: bytes, name: str | None, own: Any, headers: Mapping[str, Any]
) -> Message | BadRecord:
    """Make a message with its label from `name`: its `own` key, or one of its headers."""
    if name is None:
        return Message(key, value)
    label = own if name == "key" else headers.get(name)
    if label is None:
        what = "key" if name == "key" else f"header {name!r}"
        return BadRecord(-1, key, f"the message has no {what}, where the label should be")
    return Message(key, value, label if isinstance(label, bytes) else str(label).encode())

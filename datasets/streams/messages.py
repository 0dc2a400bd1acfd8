"""Turn messages of queues, and lines of files, into records."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.json_text import parse_json
from penstock.core.sample import BadRecord, Record, too_large
from penstock.datasets.files.access import MissingFile, absolute_path, read_file
from penstock.datasets.files.data_files import safe_path
from penstock.datasets.records.labels import StreamLabels

RESERVED = ("key", "index", "position")
"""Items that are the framework's own, and no fields."""


class JsonFields:
    """Read the fields of records in JSON objects.

    Args:
        paths: Fields that name files, and become their content.
        base64: Fields whose text stands for bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        labels: What gives labels their class ids.

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
        """Make the record of an object; a damaged one, or a missing file, gives a bad record.

        Args:
            key: Its key, if it has neither an item ``key`` nor a path.
            text: The object.
            max_bytes: Largest size of a file.
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
    """Return the key that an object names: its item ``key``, or the first of its `paths`."""
    found = (fields.get(name) for name in paths)
    key = fields.get("key") or next((path for path in found if isinstance(path, str)), None)
    return None if key is None else str(key)


def stable_key(text: bytes, paths: Sequence[str]) -> str:
    """Return a key of an object in JSON that does not depend on its place.

    It is the key that the object names, see `named_key`, or else its whole text.
    """
    try:
        fields = parse_json(text)
        if isinstance(fields, dict) and (key := named_key(fields, paths)):
            key.encode("utf-8", "surrogateescape")
            return key
    except ValueError:
        pass  # a damaged object has its text alone
    return text.strip().decode("utf-8", "backslashreplace")


class Message(NamedTuple):
    """A message of a queue that has not been looked into.

    Attributes:
        key: Its name.
        value: Its content.
        label: The bytes of the label that came with it, if there is one.
    """

    key: str
    value: bytes
    label: bytes | None = None


class MessageFields:
    """Make records of messages: each an object in JSON, or the bytes of one field.

    Args:
        value: ``json``, or the name of the field that a message is.
        json: Reads objects.
        labels: What gives labels their class ids.
    """

    def __init__(self, value: str, *, json: JsonFields, labels: StreamLabels) -> None:
        if value in RESERVED or not value:
            raise ValueError(
                f"dataset.source.value: {value!r} is no field of a message; type "
                f"dataset.source.value=image, or json"
            )
        self._value, self._json, self._labels = value, json, labels

    def record(self, message: Message, *, max_bytes: int) -> Record | BadRecord:
        """Make the record of a message; one that is damaged or too large is a bad record."""
        if len(message.value) > max_bytes:
            return BadRecord(-1, message.key, too_large(len(message.value), max_bytes))
        if self._value == "json":
            made = self._json.record(message.key, message.value, max_bytes=max_bytes)
            if isinstance(made, BadRecord) or message.label is None:
                return made
        else:
            made = Record(-1, message.key, {self._value: message.value})
        if message.label is not None:
            try:
                text = message.label.decode()
                label = int(text) if text.isdecimal() and len(text) < 19 else text
                made.fields["label"] = self._labels.id_of(label)
            except ValueError as error:
                return BadRecord(-1, message.key, " ".join(str(error).split()))
        return made

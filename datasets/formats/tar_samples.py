"""Which members of a tar archive are one sample, and which of its fields they become.

The rule of grouping is that of the webdataset library: a member's key is its path up to the first
dot of its last part, what follows is its extension, and members that stand beside each other and
have one key are a sample.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from datasets.formats.npy_bytes import read_npy, write_npy
from datasets.formats.tar_headers import BadTar, shown

T = TypeVar("T")

_RESERVED = frozenset(("index", "key", "position", "epoch", "valid"))
_IMAGES = frozenset("jpg jpeg jpe jfif png webp bmp dib tif tiff pgm ppm pnm".split())
_TEXTS = frozenset(("txt", "text", "transcript"))
# Fields of extensions without a name of their own; that of a JSON object are its items.
_PLAIN = {"cls": "label", "npy": "array", "json": "json"} | dict.fromkeys(_TEXTS, "text")
_NAMES = {"seg": "mask"}
_ODD_NAME = re.compile(r"[^a-z0-9_-]")
_HEX = re.compile("((?:%[0-9a-f]{2})+)")


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and extension of a member; None for one that belongs to no sample.

    Names without an extension, hidden ones, and notes about the archive (``__name__``) do not.
    A ``./`` in front, which tar puts there when it is given a folder, is no part of a key.
    """
    while name.startswith(b"./"):
        name = name[2:]
    folder, slash, last = name.rpartition(b"/")
    stem, dot, extension = last.partition(b".")
    if not stem or not dot or not extension:
        return None
    if name.startswith(b"__") and name.partition(b"/")[0].endswith(b"__"):
        return None
    return folder + slash + stem, extension


def iter_samples(
    members: Iterable[tuple[bytes, T]],
) -> Iterator[tuple[bytes, dict[str, T]]]:
    """Members to samples.

    Args:
        members: Name of each file of an archive, in order, and anything that goes with it.

    Yields:
        Key, and what went with the members by extension, in small letters.

    Raises:
        BadTar: A sample has two members of one extension.
    """
    current: bytes | None = None
    sample: dict[str, T] = {}
    for name, value in members:
        parts = split_name(name)
        if parts is None:
            continue
        key, extension = parts[0], extension_text(parts[1])
        if key != current:
            if current is not None:
                yield current, sample
            current, sample = key, {}
        if extension in sample:
            raise BadTar(f"the member {shown(name)} stands twice; write the archive anew")
        sample[extension] = value
    if current is not None:
        yield current, sample


@lru_cache(1024)
def extension_text(extension: bytes) -> str:
    """An extension as text, in small letters."""
    return extension.decode("utf-8", "backslashreplace").lower()


def is_image_extension(extension: str) -> bool:
    """Whether files of this extension are the field ``image``."""
    return extension.lower() in _IMAGES


class SampleFields:
    """Turns the members of a sample into the fields of a record.

    Without `fields`, an extension of two parts such as ``caption.txt`` gives a field of the first
    part's name, and one of a single part the field that is usual for its kind: images ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, and a JSON object all of its items, of
    which those that have a member of their own are left out. ``seg.png`` is ``mask``. Kinds that
    are not known (and pickled ones) stay bytes, under the whole extension.

    Args:
        fields: Extensions by field, several as ``jpg;png``, of which the first that is there is
            taken; all other members are left out. None: as above.

    Raises:
        ValueError: A field may not be called so.
    """

    def __init__(self, fields: Mapping[str, str] | None = None) -> None:
        self._chosen: dict[str, tuple[str, ...]] | None = None
        if fields is not None:
            self._chosen = {
                name: tuple(part.strip().lstrip(".").lower() for part in extensions.split(";"))
                for name, extensions in fields.items()
            }
            for name in self._chosen:
                if name in _RESERVED:
                    raise ValueError(f"fields: {name!r} is the framework's own; choose another")

    def takes(self, extension: str) -> bool:
        """Whether members with this extension become fields."""
        if self._chosen is not None:
            return any(extension in extensions for extensions in self._chosen.values())
        return _field_name(extension) not in _RESERVED

    def label_source(self, extensions: Collection[str]) -> str | None:
        """The extension of the member that a sample's label is in, if it has one."""
        if self._chosen is not None:
            return next((e for e in self._chosen.get("label", ()) if e in extensions), None)
        for extension in extensions:
            if _field_name(extension) == "label":
                return extension
        return "json" if "json" in extensions else None

    def label(self, extension: str, content: Any) -> int | str | None:
        """The label in the member that `label_source` named; None: its JSON has none.

        Raises:
            ValueError: It is damaged, or no label.
        """
        value = _decoded(extension, content)
        if isinstance(value, dict):
            if "label" not in value:
                return None
            value = value["label"]
        return _label(value)

    def read(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a sample.

        Args:
            members: Content by extension, as bytes or a view of them.

        Returns:
            Fields: numbers, text, bytes, arrays, and what JSON holds. A label is an int or a name.

        Raises:
            ValueError: A member is damaged, a chosen one is not there, or two would be one field.
        """
        if self._chosen is not None:
            return {name: self._first(name, members) for name in self._chosen}
        fields: dict[str, Any] = {}
        sources: dict[str, str] = {}
        items: dict[str, Any] = {}
        for extension, content in members.items():
            name = _field_name(extension)
            if name in _RESERVED:
                continue
            value = _decoded(extension, content)
            if extension == "json" and isinstance(value, dict):
                items = value
                continue
            if name in fields:
                raise ValueError(
                    f"{sources[name]} and {extension} are both the field {name!r}; say which is: "
                    f"fields={{{name}: {sources[name]}}}"
                )
            fields[name], sources[name] = value, extension
        for name, value in items.items():
            if name not in _RESERVED:
                fields.setdefault(name, value)
        if "label" in fields:
            fields["label"] = _label(fields["label"])
        return fields

    def _first(self, name: str, members: Mapping[str, Any]) -> Any:
        assert self._chosen is not None
        for extension in self._chosen[name]:
            if extension in members:
                if name != "label":
                    return _decoded(extension, members[extension])
                label = self.label(extension, members[extension])
                if label is None:
                    raise ValueError(f"its {extension} has no label")
                return label
        raise ValueError(
            f"it has no {' or '.join(self._chosen[name])} for the field {name!r}, only "
            f"{', '.join(members)}"
        )


def pack_members(fields: Mapping[str, Any], *, image: str, key: str) -> dict[str, bytes]:
    """The members of a sample, from which `SampleFields.read` gives its fields.

    Args:
        fields: The fields of a record.
        image: The extension of an image file.
        key: The record's key, for messages.

    Returns:
        Content by extension: byte strings and arrays each by itself, everything else as JSON.

    Raises:
        ValueError: A field cannot be held.
    """
    members: dict[str, bytes] = {}
    items: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _RESERVED or not name:
            raise ValueError(
                f"pack: {key!r}: a field is called {name!r}, which shards cannot hold; rename or "
                f"drop it with dataset.keys"
            )
        if name == "label":
            members["cls"] = b"%d" % value
        elif isinstance(value, np.ndarray):
            members[_extension(name, "npy")] = write_npy(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            extension = image if name == "image" else _extension(name, "bin")
            members[extension] = bytes(value)
        else:
            items[name] = value.item() if isinstance(value, np.generic) else value
    if items or not members:
        try:
            members["json"] = json.dumps(items).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"pack: {key!r}: one of the fields {', '.join(items)} is no JSON ({error}); "
                f"convert or drop it"
            ) from error
    return members


def _extension(name: str, kind: str) -> str:
    """An extension that gives the field `name`, whatever characters it has."""
    plain = name not in _NAMES and not _ODD_NAME.search(name)
    return f"{name if plain else ''.join(f'%{byte:02x}' for byte in name.encode())}.{kind}"


def _unescaped(found: re.Match[str]) -> str:
    return bytes.fromhex(found[1].replace("%", "")).decode("utf-8", "backslashreplace")


@lru_cache(1024)
def _field_name(extension: str) -> str:
    name, _, kind = extension.rpartition(".")
    if name and (kind in _IMAGES or kind in _PLAIN or kind == "bin"):
        return _NAMES.get(name) or _HEX.sub(_unescaped, name)
    if extension in _IMAGES:
        return "image"
    return _PLAIN.get(extension, extension)


def _decoded(extension: str, content: Any) -> Any:
    """A member's value, by the last part of its extension."""
    kind = extension.rpartition(".")[2]
    decode = _DECODERS.get(kind, bytes)
    try:
        return decode(content)
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"its {extension}: {' '.join(said.split())}") from None


def _class(content: Any) -> int | str:
    text = _text(content).strip()
    if not text or "\0" in text or len(text) > 1000:
        raise ValueError(f"{text[:20]!r} is neither a class id nor the name of one")
    return int(text) if text.isdecimal() and len(text) < 19 else text


def _label(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(
            f"its label is {' '.join(repr(value)[:40].split())}, expected a class id or the "
            f"name of one; take it as another field: fields={{annotations: json}}"
        )
    return value


def _text(content: Any) -> str:
    return str(content, "utf-8")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "cls": _class,
    "json": lambda content: json.loads(_text(content)),
    "npy": lambda content: read_npy(bytes(content)),
    **dict.fromkeys(_TEXTS, _text),
}

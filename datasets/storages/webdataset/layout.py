"""Group the members of a tar archive into samples, and convert samples to fields and back.

Members are grouped as in the webdataset library: a member's key is its path up to the first
dot of the last part, the rest is its extension, and adjacent members with one key are a sample.
So that any key round-trips, the name of the members' owner, which is otherwise unused, holds the
part of a key that the path cannot hold (``key:.jpg``), or marks an escaped path (``key:%``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.core.arrays import read_npy, write_npy
from penstock.core.json_text import parse_json
from penstock.core.sample import RecordError
from penstock.datasets.files.data_files import IMAGE_ENDINGS
from penstock.datasets.storages.webdataset.headers import shown

T = TypeVar("T")

RESERVED = frozenset(("index", "key", "position", "epoch", "valid"))
IMAGE_EXTENSIONS = frozenset(ending[1:] for ending in IMAGE_ENDINGS)
_TEXTS = frozenset(("txt", "text", "transcript"))
# Fields of extensions without a name of their own; the items of a JSON object are fields.
_PLAIN = {"cls": "label", "npy": "array", "json": "json"} | dict.fromkeys(_TEXTS, "text")
_FIELD_NAMES = {"seg": "mask"}
_MOST_LAYOUTS = 1024
_ESCAPES = re.compile("((?:%[0-9a-f]{2})+)")
_ODD_NAME = re.compile(r"[^a-z0-9_-]")
_MARK = b"key:"
_ESCAPED = b"key:%"
_ODD = re.compile(rb"[^A-Za-z0-9_ /\x80-\xff-]")
_ANY = re.compile(rb"(?s).")
_HEX = re.compile(rb"%([0-9a-f]{2})")
_EXTENSION = re.compile(rb"(\.[A-Za-z0-9]{1,16})?")


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a member's name into key and extension; return None for members outside samples.

    These lack an extension, are hidden, or are notes about the archive (``__name__``).
    Strips a leading ``./``, which tar adds to the members of a folder.
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


def iter_samples(members: Iterable[tuple[bytes, bytes, T]]) -> Iterator[tuple[bytes, dict[str, T]]]:
    """Group members into samples.

    Args:
        members: Name, owner and a value of each file of an archive, in order.

    Yields:
        Key, and the values of the members by lower-case extension.

    Raises:
        RecordError: A sample has two members of one extension.
    """
    current: bytes | None = None
    key = b""
    sample: dict[str, T] = {}
    for name, owner, value in members:
        parts = split_name(name)
        if parts is None:
            continue
        stem, extension = parts[0], extension_text(parts[1])
        if stem != current:
            if current is not None:
                yield key, sample
            current, key, sample = stem, unpack_key(stem, owner), {}
        if extension in sample:
            raise RecordError(f"the member {shown(name)} stands twice; write the archive anew")
        sample[extension] = value
    if current is not None:
        yield key, sample


@lru_cache(1024)
def extension_text(extension: bytes) -> str:
    """Decode an extension, in lower case."""
    return extension.decode("utf-8", "backslashreplace").lower()


class SampleLayout(NamedTuple):
    """Roles of the members of a sample.

    Attributes:
        fields: Extension and field of each, except the label.
        content: Extensions of the members of these fields, in the order of the archive.
        label: The extension of the label's member, or None.
        object: Whether the items of ``json`` are fields.
        absent: Chosen fields without a member.
    """

    fields: tuple[tuple[str, str], ...]
    content: tuple[str, ...]
    label: str | None
    object: bool
    absent: tuple[str, ...]


class SampleFields:
    """Convert the members of a sample to the fields of a record.

    Without `fields`, the first part of an extension such as ``caption.txt`` names the field. A
    simple extension gives the usual field of its kind: images ``image``, ``cls`` ``label``,
    ``txt`` ``text``, ``npy`` ``array``, and a JSON object all its items, except items with a
    member of their own. ``seg.png`` is ``mask``. Unknown and pickled kinds stay bytes, under the
    whole extension.

    Args:
        fields: Extensions by field. Of several, as in ``jpg;png``, the first one present counts;
            other members are dropped. None: as above.
        setting: Name of this option, for messages.

    Raises:
        ValueError: A field name is reserved.
    """

    def __init__(
        self, fields: Mapping[str, str] | None = None, *, setting: str = "dataset.storage.fields"
    ) -> None:
        self._setting = setting
        self._chosen: dict[str, tuple[str, ...]] | None = None
        self._layouts: dict[tuple[str, ...], SampleLayout] = {}
        if fields is not None:
            self._chosen = {
                name: tuple(part.strip().lstrip(".").lower() for part in extensions.split(";"))
                for name, extensions in fields.items()
            }
            for name in self._chosen:
                if name in RESERVED:
                    raise ValueError(f"{setting}: {name!r} is the framework's own; choose another")

    def takes(self, extension: str) -> bool:
        """Return whether members with this extension become fields."""
        if self._chosen is not None:
            return any(extension in extensions for extensions in self._chosen.values())
        return _field_name(extension) not in RESERVED

    def layout(self, extensions: tuple[str, ...]) -> SampleLayout:
        """Return the roles of the members of samples with these extensions.

        Raises:
            ValueError: Two members have the same field.
        """
        layout = self._layouts.get(extensions)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[extensions] = self._made(extensions)
        return layout

    def label(self, extension: str, content: Any) -> int | str | None:
        """Read the label from a layout's label member; return None for JSON without a label.

        Raises:
            ValueError: It is damaged or invalid.
        """
        value = _decoded(extension, content)
        if isinstance(value, dict):
            if "label" not in value:
                return None
            value = value["label"]
        elif extension == "json" and self._chosen is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(
                f"its label is {' '.join(repr(value)[:40].split())}, expected a class id or the "
                f"name of one; take it as another field: {self._setting}={{annotations:json}}"
            )
        return value

    def read(self, members: Mapping[str, Any], *, label: bool = True) -> dict[str, Any]:
        """Read the fields of a sample.

        Args:
            members: Content by extension, as bytes or a view of them.
            label: Read the label too. Otherwise its member may be missing, and the label in a JSON
                object stays unconverted.

        Returns:
            Numbers, text, bytes, arrays and JSON values. A label is an int or a name.

        Raises:
            ValueError: A member is damaged, a chosen one is missing, or two have the same field.
        """
        layout = self.layout(tuple(members))
        if absent := [name for name in layout.absent if label or name != "label"]:
            assert self._chosen is not None
            raise ValueError(
                f"it has no {' or '.join(self._chosen[absent[0]])} for the field {absent[0]!r}, "
                f"only {', '.join(members)}"
            )
        fields = {
            name: _decoded(extension, members[extension]) for extension, name in layout.fields
        }
        if layout.object:
            value = _decoded("json", members["json"])
            for name, item in (value if isinstance(value, dict) else {"json": value}).items():
                if name not in RESERVED:
                    fields.setdefault(name, item)
        if label and layout.label is not None:
            found = self.label(layout.label, members[layout.label])
            if found is not None:
                fields["label"] = found
            elif self._chosen is not None:
                raise ValueError(f"its {layout.label} lacks a label")
        return fields

    def _made(self, extensions: tuple[str, ...]) -> SampleLayout:
        sources: dict[str, str] = {}
        for name, several in (self._chosen or {}).items():
            if found := next((one for one in several if one in extensions), None):
                sources[name] = found
        for extension in extensions if self._chosen is None else ():
            name = _field_name(extension)
            if name in RESERVED or extension == "json":
                continue
            if name in sources:
                raise ValueError(
                    f"{sources[name]} and {extension} are both the field {name!r}; say which is: "
                    f"{self._setting}={{{name}:{sources[name]}}}"
                )
            sources[name] = extension
        absent = tuple(name for name in self._chosen or () if name not in sources)
        has_object = self._chosen is None and "json" in extensions
        label = sources.pop("label", "json" if has_object else None)
        fields = tuple((extension, name) for name, extension in sources.items())
        content = {*sources.values(), *(["json"] if has_object else [])}
        in_order = tuple(extension for extension in extensions if extension in content)
        return SampleLayout(fields, in_order, label, has_object, absent)


def _unescaped(found: re.Match[str]) -> str:
    return bytes.fromhex(found[1].replace("%", "")).decode("utf-8", "backslashreplace")


@lru_cache(1024)
def _field_name(extension: str) -> str:
    name, _, kind = extension.rpartition(".")
    if name and (kind in IMAGE_EXTENSIONS or kind in _PLAIN or kind == "bin"):
        return _FIELD_NAMES.get(name) or _ESCAPES.sub(_unescaped, name)
    if extension in IMAGE_EXTENSIONS:
        return "image"
    return _PLAIN.get(extension, extension)


def _decoded(extension: str, content: Any) -> Any:
    """Decode a member by the last part of its extension."""
    try:
        return _DECODERS.get(extension.rpartition(".")[2], bytes)(content)
    except ValueError as error:
        raise ValueError(f"its {extension}: {' '.join(str(error).split())}") from None


def _class(content: Any) -> int | str:
    text = _text(content).strip()
    if not text or "\0" in text or len(text) > 1000:
        raise ValueError(f"{text[:20]!r} is neither a class id nor the name of one")
    return int(text) if text.isdecimal() and len(text) < 19 else text


def _text(content: Any) -> str:
    return str(content, "utf-8")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "cls": _class,
    "json": lambda content: parse_json(_text(content)),
    "npy": lambda content: read_npy(bytes(content)),
    **dict.fromkeys(_TEXTS, _text),
}


def pack_members(fields: Mapping[str, Any], *, image: str, key: str) -> dict[str, bytes]:
    """Encode a sample as members that `SampleFields.read` decodes.

    Returns:
        Content by extension: one member for each byte string and array, JSON for all else.

    Raises:
        ValueError: A field cannot be stored.
    """
    members: dict[str, bytes] = {}
    items: dict[str, Any] = {}
    for name, value in fields.items():
        if name in RESERVED or not name:
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
            members["json"] = json.dumps(dict(sorted(items.items()))).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"pack: {key!r}: one of the fields {', '.join(items)} is no JSON ({error}); "
                f"convert or drop it"
            ) from error
    # Small members first, in an order that does not depend on the order of the fields.
    return dict(sorted(members.items(), key=lambda m: (m[0] not in ("cls", "json"), m[0])))


def _extension(name: str, kind: str) -> str:
    """Return an extension that decodes to the field `name`, escaping odd characters."""
    plain = name not in _FIELD_NAMES and not _ODD_NAME.search(name)
    return f"{name if plain else ''.join(f'%{byte:02x}' for byte in name.encode())}.{kind}"


def pack_key(key: bytes, *, before: bytes) -> tuple[bytes, bytes]:
    """Encode a key as the stem of its members' names and the name of their owner.

    The stem differs from `before`, the stem of the previous sample.
    """
    at = key.rfind(b".", key.rfind(b"/") + 1)
    stem, rest = (key[:at], key[at:]) if at >= 0 else (key, b"")
    if b"%" not in stem and _EXTENSION.fullmatch(rest) and _is_path(stem) and stem != before:
        return stem, _MARK + rest if rest else b""
    escaped = _ODD.sub(_hex, key)
    if not _is_path(escaped) or escaped == before:
        escaped = _ANY.sub(_hex, key) or b"%"
    return escaped, _ESCAPED


def unpack_key(stem: bytes, owner: bytes) -> bytes:
    """Decode the key of a sample from its members' stem and owner."""
    if not owner.startswith(_MARK):
        return stem
    if owner != _ESCAPED:
        return stem + owner[len(_MARK) :]
    return b"" if stem == b"%" else _HEX.sub(lambda found: bytes([int(found[1], 16)]), stem)


def _hex(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def _is_path(stem: bytes) -> bool:
    """Return whether all tar readers interpret names with this stem alike."""
    if stem.startswith(b"/") or b"\0" in stem or b".." in stem.split(b"/"):
        return False
    return split_name(stem + b".x") == (stem, b"x")

"""Group the members of a tar archive into samples, and turn these into fields and back.

The rule of grouping is that of the webdataset library: a member's key is its path up to the first
dot of its last part, what follows is its extension, and members that stand beside each other and
have one key are a sample. So that keys of any characters come back exactly, the part of one that
the path cannot hold, or that the path is escaped, stands in the name of the members' owner, which
is of no use otherwise: ``key:.jpg`` or ``key:%``.
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
# Fields of extensions without a name of their own; that of a JSON object are its items.
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
    """Split a member's name into key and extension; None for one that belongs to no sample.

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


def iter_samples(members: Iterable[tuple[bytes, bytes, T]]) -> Iterator[tuple[bytes, dict[str, T]]]:
    """Group members into samples.

    Args:
        members: Name and owner of each file of an archive, in order, and what goes with it.

    Yields:
        Key, and what went with the members by extension, in small letters.

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
    """Decode an extension, in small letters."""
    return extension.decode("utf-8", "backslashreplace").lower()


class SampleLayout(NamedTuple):
    """Roles of the members of a sample.

    Attributes:
        fields: Extension and field of each, but the label.
        content: Extensions of the members that these are in, in the order of the archive.
        label: The extension of the member that the label is in, if there is one.
        object: The items of ``json`` are fields.
        absent: Chosen fields that have no member.
    """

    fields: tuple[tuple[str, str], ...]
    content: tuple[str, ...]
    label: str | None
    object: bool
    absent: tuple[str, ...]


class SampleFields:
    """Turn the members of a sample into the fields of a record.

    Without `fields`, an extension of two parts such as ``caption.txt`` gives a field of the first
    part's name, and one of a single part the field that is usual for its kind: images ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, and a JSON object all of its items, of
    which those that have a member of their own are left out. ``seg.png`` is ``mask``. Kinds that
    are not known (and pickled ones) stay bytes, under the whole extension.

    Args:
        fields: Extensions by field, several as ``jpg;png``, of which the first that is there is
            taken; all other members are left out. None: as above.
        setting: What that is called where it is typed.

    Raises:
        ValueError: A field may not be called so.
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
        """Tell whether members with this extension become fields."""
        if self._chosen is not None:
            return any(extension in extensions for extensions in self._chosen.values())
        return _field_name(extension) not in RESERVED

    def layout(self, extensions: tuple[str, ...]) -> SampleLayout:
        """Decide what becomes of samples with these members.

        Raises:
            ValueError: Two would be one field.
        """
        layout = self._layouts.get(extensions)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[extensions] = self._made(extensions)
        return layout

    def label(self, extension: str, content: Any) -> int | str | None:
        """Read the label in the member that a layout names; None: its JSON has none.

        Raises:
            ValueError: It is damaged, or no label.
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
            label: Read the label too. Otherwise its member may be left out, and one that an
                object holds comes as it is.

        Returns:
            Fields: numbers, text, bytes, arrays, and what JSON holds. A label is an int or a name.

        Raises:
            ValueError: A member is damaged, a chosen one is not there, or two would be one field.
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
                raise ValueError(f"its {layout.label} has no label")
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
    """A member's value, by the last part of its extension."""
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
    """Encode a sample as members, from which `SampleFields.read` gives its fields.

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
    # What is small stands before what is large; and the order of the fields does not matter.
    return dict(sorted(members.items(), key=lambda m: (m[0] not in ("cls", "json"), m[0])))


def _extension(name: str, kind: str) -> str:
    """An extension that gives the field `name`, whatever characters it has."""
    plain = name not in _FIELD_NAMES and not _ODD_NAME.search(name)
    return f"{name if plain else ''.join(f'%{byte:02x}' for byte in name.encode())}.{kind}"


def pack_key(key: bytes, *, before: bytes) -> tuple[bytes, bytes]:
    """Encode a key: what the names of a sample's members begin with, and the name of their owner.

    Args:
        key: The key.
        before: What the names of the sample before begin with, which must be something else.
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
    """Decode the key of a sample.

    Args:
        stem: What the names of its members begin with.
        owner: The name of their owner.
    """
    if not owner.startswith(_MARK):
        return stem
    if owner != _ESCAPED:
        return stem + owner[len(_MARK) :]
    return b"" if stem == b"%" else _HEX.sub(lambda found: bytes([int(found[1], 16)]), stem)


def _hex(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def _is_path(stem: bytes) -> bool:
    """Whether names that begin so are read as they are meant, by everyone."""
    if stem.startswith(b"/") or b"\0" in stem or b".." in stem.split(b"/"):
        return False
    return split_name(stem + b".x") == (stem, b"x")

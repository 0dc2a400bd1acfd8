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
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np

from penstock.core.arrays import RESERVED, read_npy, write_npy
from penstock.core.json_text import parse_json
from penstock.core.sample import Record, RecordError
from penstock.datasets.files.data_files import IMAGE_ENDINGS, image_ending
from penstock.datasets.storages.webdataset.headers import Member, shown

IMAGE_EXTENSIONS = frozenset(ending[1:] for ending in IMAGE_ENDINGS)
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
ITEMS = ""
"""Stands for the fields that are the items of a JSON object."""
_TEXTS = frozenset(("txt", "text", "transcript"))
# Fields of extensions without a name of their own; the items of a JSON object are fields.
_PLAIN = {"cls": "label", "npy": "array", "json": "json"} | dict.fromkeys(_TEXTS, "text")
_FIELD_NAMES = {"seg": "mask"}
_FIELD_NAME = re.compile(r"[a-z0-9_-]+")
_OWNER = b"key:"
_ESCAPED = b"key:%"
# Keys that are paths without dots in their last part, except for an ending.
_LETTER = rb"[\w\x80-\xff -]"
_PLAIN_KEY = re.compile(
    rb"((?!__)(?:%b(?:%b|\.)*/)*%b+)(\.[A-Za-z0-9]{1,16})?" % (_LETTER, _LETTER, _LETTER)
)


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """Split a member's name into key and extension.

    Return None for members without an extension, hidden ones, and notes (``__name__``).
    """
    while name.startswith(b"./"):
        name = name[2:]
    folder, slash, last = name.rpartition(b"/")
    stem, _, extension = last.partition(b".")
    is_note = name.startswith(b"__") and name.partition(b"/")[0].endswith(b"__")
    if not stem or not extension or is_note:
        return None
    return folder + slash + stem, extension.decode("utf-8", "backslashreplace").lower()


def iter_samples(members: Iterable[Member]) -> Iterator[tuple[bytes, dict[str, Member]]]:
    """Group the files of an archive into samples: a key, and members by lower-case extension."""
    named = ((*parts, m) for m in members if (parts := split_name(m.name)) is not None)
    for stem, group in groupby(named, key=itemgetter(0)):
        sample: dict[str, Member] = {}
        for _, extension, member in group:
            if extension in sample:
                said = f"the member {shown(member.name)} stands twice; write the archive anew"
                raise RecordError(said)
            sample[extension] = member
        owner = next(iter(sample.values())).owner
        yield unpack_key(stem, owner), sample


class SampleFields:
    """Convert the members of a sample to the fields of a record.

    Without `fields`, the first part of an extension such as ``caption.txt`` names the field. A
    simple extension gives the usual field of its kind, and a JSON object all its items, except
    items with a member of their own. Unknown and pickled kinds stay bytes.

    Args:
        fields: Extensions by field, of which a sample has one, as in ``jpg;png``; other members are
            dropped. None: as above.
        setting: Name of this option, for messages.
    """

    def __init__(
        self, fields: Mapping[str, str] | None = None, *, setting: str = "dataset.storage.fields"
    ) -> None:
        self._setting = setting
        self._chosen: dict[str, str] | None = None
        if fields is not None:
            self._chosen = {
                extension.strip().lstrip(".").lower(): name
                for name, several in fields.items()
                for extension in several.split(";")
            }

    def name(self, extension: str) -> str | None:
        """Return the field of an extension, `ITEMS` for several fields, or None."""
        if self._chosen is not None:
            return self._chosen.get(extension)
        name = ITEMS if extension == "json" else _field_name(extension)
        return None if name in RESERVED else name

    def sources(self, extensions: Iterable[str]) -> dict[str, str]:
        """Return the extension of each field; RecordError if two members have the same field."""
        sources: dict[str, str] = {}
        for extension in extensions:
            if (name := self.name(extension)) is None:
                continue
            if name in sources:
                raise RecordError(
                    f"{sources[name]} and {extension} are both the field {name!r}; say which is: "
                    f"{self._setting}={{{name}:{extension}}}, or write keys without dots"
                )
            sources[name] = extension
        return sources

    def label_source(self, sources: Mapping[str, str]) -> str | None:
        """Return the extension of the member that may have the label, or None."""
        return sources.get("label", sources.get(ITEMS))

    def label(self, extension: str, content: Any) -> int | str | None:
        """Read the label from its member; return None for JSON without a label."""
        value = _decoded(extension, content)
        if isinstance(value, dict):
            value = value.get("label")
        elif self.name(extension) == ITEMS:
            return None
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
            raise RecordError(
                f"its label is {' '.join(repr(value)[:40].split())}, expected a class id or the "
                f"name of one; take it as another field: {self._setting}={{annotations:json}}"
            )
        return value

    def read(self, members: Mapping[str, Any], *, label: bool = True) -> dict[str, Any]:
        """Read the fields of a sample from contents by extension; RecordError if one is damaged.

        Without `label`, its member may be missing, and a label in JSON stays unconverted.
        """
        sources = self.sources(members)
        for wanted, name in (self._chosen or {}).items():
            if name not in sources and (label or name != "label"):
                said = f"it lacks {wanted} for the field {name!r}, and has {', '.join(members)}"
                raise RecordError(said)
        fields = {n: _decoded(e, members[e]) for n, e in sources.items() if n != "label"}
        if ITEMS in fields:
            items = fields.pop(ITEMS)
            items = items if isinstance(items, dict) else {"json": items}
            fields = {n: item for n, item in items.items() if n not in RESERVED} | fields
        if label and (extension := self.label_source(sources)) is not None:
            found = self.label(extension, members[extension])
            if found is not None:
                fields["label"] = found
            elif "label" in sources:
                raise RecordError(f"its {extension} lacks a label")
        return fields


@lru_cache(1024)
def _field_name(extension: str) -> str:
    name, _, kind = extension.rpartition(".")
    if name and (kind in IMAGE_EXTENSIONS or kind in _PLAIN or kind == "bin"):
        return _FIELD_NAMES.get(name, name)
    if extension in IMAGE_EXTENSIONS:
        return "image"
    return _PLAIN.get(extension, extension)


def _decoded(extension: str, content: Any) -> Any:
    """Decode a member by the last part of its extension."""
    try:
        return _DECODERS.get(extension.rpartition(".")[2], bytes)(content)
    except ValueError as error:
        raise RecordError(f"its {extension}: {' '.join(str(error).split())}") from None


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


def pack_members(record: Record) -> dict[str, bytes]:
    """Encode a record as members by extension: byte strings, arrays, and one of JSON."""
    members: dict[str, bytes] = {}
    items: dict[str, Any] = {}
    for name, value in record.fields.items():
        is_member = isinstance(value, np.ndarray | bytes | bytearray | memoryview)
        odd = is_member and (name in _FIELD_NAMES or not _FIELD_NAME.fullmatch(name))
        if name in RESERVED or not name or odd:
            raise ValueError(
                f"pack: {record.key!r}: a field is called {name!r}, which shards cannot hold; "
                f"rename or drop it with dataset.keys"
            )
        if name == "label":
            members["cls"] = b"%d" % value
        elif isinstance(value, np.ndarray):
            members[f"{name}.npy"] = write_npy(value)
        elif is_member:
            kind = image_ending(bytes(value)) if name == "image" else None
            members[kind[1:] if kind else f"{name}.bin"] = bytes(value)
        else:
            items[name] = value.item() if isinstance(value, np.generic) else value
    if items or not members:
        try:
            members["json"] = json.dumps(dict(sorted(items.items()))).encode()
        except TypeError as error:
            what = f"{', '.join(items)}: {error}; convert or drop it"
            raise ValueError(f"pack: {record.key!r}: a field of {what}") from error
    # Small members first, in an order that does not depend on the order of the fields.
    return dict(sorted(members.items(), key=lambda m: (m[0] not in ("cls", "json"), m[0])))


def pack_key(key: bytes, *, before: bytes) -> tuple[bytes, bytes]:
    """Encode a key as the stem of its members' names and the name of their owner.

    The stem differs from `before`, the stem of the previous sample.
    """
    plain = _PLAIN_KEY.fullmatch(key)
    if plain and plain[1] != before:
        return plain[1], _OWNER + plain[2] if plain[2] else b""
    return b"%" + quote_from_bytes(key, safe="").replace(".", "%2E").encode(), _ESCAPED


def unpack_key(stem: bytes, owner: bytes) -> bytes:
    """Decode the key of a sample from its members' stem and owner."""
    if owner == _ESCAPED:
        return unquote_to_bytes(stem[1:])
    return stem + owner.removeprefix(_OWNER) if owner.startswith(_OWNER) else stem

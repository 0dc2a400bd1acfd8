"""Which members of a tar archive are one sample, and which of its fields they become.

The rule of grouping is that of the webdataset library: a member's key is its path up to the first
dot of its last part, what follows is its extension, and members that stand beside each other and
have one key are a sample.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from datasets.formats.npy_bytes import read_npy
from datasets.formats.tar_headers import BadTar, shown

T = TypeVar("T")

RESERVED = frozenset(("index", "key", "position", "epoch", "valid"))
_IMAGES = frozenset("jpg jpeg jpe jfif png webp bmp dib tif tiff pgm ppm pnm".split())
_TEXTS = frozenset(("txt", "text", "transcript"))
# Fields of extensions without a name of their own; that of a JSON object are its items.
_PLAIN = {"cls": "label", "npy": "array", "json": "json"} | dict.fromkeys(_TEXTS, "text")
FIELD_NAMES = {"seg": "mask"}
_MOST_LAYOUTS = 1024
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


class SampleLayout(NamedTuple):
    """What becomes of the members of a sample.

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
        self._layouts: dict[tuple[str, ...], SampleLayout] = {}
        if fields is not None:
            self._chosen = {
                name: tuple(part.strip().lstrip(".").lower() for part in extensions.split(";"))
                for name, extensions in fields.items()
            }
            for name in self._chosen:
                if name in RESERVED:
                    raise ValueError(f"fields: {name!r} is the framework's own; choose another")

    def takes(self, extension: str) -> bool:
        """Whether members with this extension become fields."""
        if self._chosen is not None:
            return any(extension in extensions for extensions in self._chosen.values())
        return _field_name(extension) not in RESERVED

    def layout(self, extensions: tuple[str, ...]) -> SampleLayout:
        """What becomes of samples with these members.

        Raises:
            ValueError: Two would be one field.
        """
        layout = self._layouts.get(extensions)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            made = self._usual if self._chosen is None else self._of_chosen
            layout = self._layouts[extensions] = made(extensions)
        return layout

    def label(self, extension: str, content: Any) -> int | str | None:
        """The label in the member that a layout names; None: its JSON has none.

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
        return _label(value)

    def read(self, members: Mapping[str, Any], *, label: bool = True) -> dict[str, Any]:
        """The fields of a sample.

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
        if layout.absent and (label or layout.absent != ("label",)):
            assert self._chosen is not None
            name = next(name for name in layout.absent if label or name != "label")
            raise ValueError(
                f"it has no {' or '.join(self._chosen[name])} for the field {name!r}, only "
                f"{', '.join(members)}"
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

    def _usual(self, extensions: tuple[str, ...]) -> SampleLayout:
        sources: dict[str, str] = {}
        for extension in extensions:
            name = _field_name(extension)
            if name in RESERVED or extension == "json":
                continue
            if name in sources:
                raise ValueError(
                    f"{sources[name]} and {extension} are both the field {name!r}; say which is: "
                    f"fields={{{name}: {sources[name]}}}"
                )
            sources[name] = extension
        has_object = "json" in extensions
        label = sources.pop("label", "json" if has_object else None)
        fields = tuple((extension, name) for name, extension in sources.items())
        content = {*sources.values(), *(["json"] if has_object else [])}
        in_order = tuple(extension for extension in extensions if extension in content)
        return SampleLayout(fields, in_order, label, has_object, ())

    def _of_chosen(self, extensions: tuple[str, ...]) -> SampleLayout:
        assert self._chosen is not None
        first = {
            name: next((one for one in several if one in extensions), None)
            for name, several in self._chosen.items()
        }
        absent = tuple(name for name, extension in first.items() if extension is None)
        label = first.pop("label", None)
        fields = tuple((extension, name) for name, extension in first.items() if extension)
        in_order = tuple(one for one in extensions if one in first.values())
        return SampleLayout(fields, in_order, label, False, absent)


def _unescaped(found: re.Match[str]) -> str:
    return bytes.fromhex(found[1].replace("%", "")).decode("utf-8", "backslashreplace")


@lru_cache(1024)
def _field_name(extension: str) -> str:
    name, _, kind = extension.rpartition(".")
    if name and (kind in _IMAGES or kind in _PLAIN or kind == "bin"):
        return FIELD_NAMES.get(name) or _HEX.sub(_unescaped, name)
    if extension in _IMAGES:
        return "image"
    return _PLAIN.get(extension, extension)


def _decoded(extension: str, content: Any) -> Any:
    """A member's value, by the last part of its extension."""
    try:
        return _decoder(extension)(content)
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"its {extension}: {' '.join(said.split())}") from None


@lru_cache(1024)
def _decoder(extension: str) -> Callable[[Any], Any]:
    return _DECODERS.get(extension.rpartition(".")[2], bytes)


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

"""Records into image files, in the folders of their classes."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from datasets.annotations.labels import class_ids, names_from_folders
from datasets.parts import PackPlan, Part, PartSummary, Written, raw_keys, written_keys
from datasets.sample import Record
from datasets.scan import IMAGE_ENDINGS
from pipeline.registry import register

_NAME_BYTES = 255  # the most that file systems take
_PATH_BYTES = 2048
_CHUNK = 1 << 16
_INSTEAD = "pack.to=zip and the other forms hold it"


@register("writer", "image_folder")
class ImageFolderWriter:
    """A folder for each class, and in it the images' files, which keep their bytes.

    Keys are the files' paths and have to be such paths already, ``<class>/<name>.jpg``, as those of
    records are that came from folders: nothing else would tell a record's key or class. So
    classes are in the order of their names, records in that of their keys, and each has an image
    file and a label, and nothing beside.
    """

    version = 1
    part_records = 4096
    part_bytes = 1 << 28
    cannot_hold = frozenset(
        ("keys", "numbered", "order", "classes", "pixels", "arrays", "shapes", "bytes", "numbers",
         "values", "no image")
    )  # fmt: skip
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Look whether all keys can be paths, and the samples be held."""
        keys = list(_all_keys(plan))
        _refuse_paths(keys)
        for one, other in pairwise(keys):
            if one >= other:
                raise _refusal(f"{_shown(other)} stands behind {_shown(one)}, and files are sorted")
        _refuse_classes(keys, plan)
        for record in plan.samples:
            _content(record, plan)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write files."""
        names, made = [], set()
        for record in records:
            content = _content(record, plan)
            name = os.fsdecode(next(_all_keys(plan, record.index, record.index + 1)))
            inside = os.path.dirname(name)
            if inside not in made:
                made.add(inside)
                os.makedirs(folder / inside, exist_ok=True)
            with open(folder / name, "wb", buffering=0) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            names.append(name)
        return Written(files=tuple(names))

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Nothing: the files are in their places."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Look whether every class still has a file, where some could not be read."""
        _refuse_classes(written_keys(plan, summaries), plan)


def _all_keys(plan: PackPlan, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    stop = len(plan) if stop is None else stop
    for first in range(start, stop, _CHUNK):
        yield from raw_keys(plan.index, np.arange(first, min(first + _CHUNK, stop)))


def _refuse_paths(keys: Sequence[bytes]) -> None:
    """Refuse keys that are no names of image files, or of which two may be one file."""
    files: dict[str, bytes] = {}
    folders: dict[str, bytes] = {}
    for key in keys:
        if problem := _problem(key):
            raise _refusal(f"the key {_shown(key)} {problem}, and it would be a file's path")
        inside = key.rpartition(b"/")[0]
        while inside and folders.get(_folded(inside)) != inside:
            if (other := folders.setdefault(_folded(inside), inside)) != inside:
                raise _refusal(f"the folders {_shown(other)} and {_shown(inside)} may be one")
            inside = inside.rpartition(b"/")[0]
        if (known := files.setdefault(_folded(key), key)) is not key:
            raise _refusal(f"the files {_shown(known)} and {_shown(key)} may be one")
    for name in folders.keys() & files.keys():
        raise _refusal(f"{_shown(files[name])} would be a file and a folder")


def _problem(key: bytes) -> str | None:
    parts = key.split(b"/")
    stem, _, ending = parts[-1].rpartition(b".")
    if len(parts) < 2 or any(part[:1] in (b"", b".") for part in parts):
        return "is not <class>/<name> of names that do not begin with a dot"
    if f".{ending.decode('ascii', 'replace').lower()}" not in IMAGE_ENDINGS or not stem:
        return f"does not end in {', '.join(IMAGE_ENDINGS[:3])} or the like"
    if any(byte < 32 or byte == 127 for byte in key) or b"\\" in key:
        return "has a control character or a backslash"
    if len(key) > _PATH_BYTES or max(map(len, parts)) > _NAME_BYTES:
        return "is too long"
    return None


def _refuse_classes(keys: Sequence[bytes], plan: PackPlan) -> None:
    """Refuse classes that would have other ids where they are found as folders."""
    texts = [key.decode("utf-8", "backslashreplace") for key in keys]
    _, found = class_ids(names_from_folders(texts, where="pack"), None, where="pack")
    if tuple(found) == tuple(plan.class_names or ()):
        return
    given = list(plan.class_names or ())
    gone = [name for name in given if name not in set(found)]
    what = f"the class {gone[0]!r} has no file" if gone else "classes are not as folders sort them"
    raise _refusal(what if given else "the records have no classes")


def _content(record: Record, plan: PackPlan) -> bytes:
    """A record's file."""
    if extra := sorted(record.fields.keys() - {"image", "label"}):
        raise _refusal(f"{record.key!r} has a field {extra[0]!r}")
    image, label = record.fields.get("image"), record.fields.get("label")
    if not isinstance(image, bytes | bytearray | memoryview):
        raise _refusal(f"{record.key!r} has no image that is an encoded file")
    classes = plan.class_names or ()
    folder = record.key.partition("/")[0]
    if label is None or not 0 <= label < len(classes) or classes[label] != folder:
        name = None if label is None or not 0 <= label < len(classes) else classes[label]
        raise _refusal(f"{record.key!r} is of the class {name!r} and in the folder {folder!r}")
    return bytes(image)


def _folded(path: bytes) -> str:
    """What two paths have alike where a file system takes them for one."""
    text = path.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return repr(text if len(text) < 80 else f"{text[:77]}...")


def _refusal(what: str) -> ValueError:
    return ValueError(f"pack.to=image_folder: {what}; {_INSTEAD}")

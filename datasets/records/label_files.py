"""Find the label files of a storage and the records that they describe."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.core.contracts import RecordsToLabel
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.clients import AccessDenied
from penstock.datasets.files.data_files import scan_files
from penstock.datasets.files.listings import NothingThere, find_file
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.matching import check_missing, match_keys, plain
from penstock.datasets.records.table import Table

MARK = ".packed.npz"
"""File that packing writes beside a split.

It indexes the records with their checksums, the files, and the names and columns of annotations.
"""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A label file with its size and modification time."""

    path: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def at(cls, path: str) -> LabelFile | None:
        """Stat the file at `path`; return None if it does not exist."""
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            if is_trouble(error):
                raise
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return cls(path, status.st_size, status.st_mtime_ns)


def find_files(folder: str, ending: str) -> dict[str, LabelFile]:
    """Find files with an ending below a folder, by relative path without the ending."""
    keys = map(os.fsdecode, scan_files(folder, endings=(ending.rpartition(".")[2],)).keys)
    return {
        plain(key[: -len(ending)]): file
        for key in keys
        if key.lower().endswith(ending.lower())
        and (file := LabelFile.at(os.path.join(folder, key))) is not None
    }


def matched_files(
    records: RecordsToLabel,
    folder: str,
    ending: str,
    rule: str | None,
    *,
    where: str,
    what: str,
    taken: str = "taken as without objects",
    setting: str = "dataset.annotations.missing=empty",
) -> list[LabelFile | None]:
    """Find the file of each record below a folder, by the rule of `match_keys`."""
    files = find_files(folder, ending)
    entries = match_keys(records.keys, list(files), place=records.place, where=where)
    found = [None if entry is None else files[entry] for entry in entries]
    check_missing(records.keys, found, rule, where=where, what=what,
                  taken=taken, setting=setting)  # fmt: skip
    return found


def find_mark(place: str) -> Table | None:
    """Open the index that packing wrote beside a split; return None without one."""
    if is_url(place):
        url = f"{place}/{MARK}"
        with contextlib.suppress(AccessDenied):  # object stores deny access to missing files
            return Table.open(local_copy(url)) if find_file(url) is not None else None
        return None
    path = os.path.join(place if os.path.isdir(place) else os.path.dirname(place), MARK)
    return Table.open(path) if os.path.isfile(path) else None


def find_labels(
    name: str, kind: Literal["file", "folder"], path: str, records: RecordsToLabel
) -> tuple[str, str]:
    """Find the label file or folder of a storage; also return a description for messages.

    `path` is relative to the data's folder, its parent, or the working folder: the first that
    exists. Its first letter may also be a capital, as in VOC's ``Annotations``. ``{part}`` is
    ``train`` or ``val``, or the name of the part's folder.
    """
    if "{part}" in path and not records.part:
        folder = path.partition("{part}")[0].rstrip("/")
        one = path.replace("{part}", "all") if kind == "file" else folder or "labels"
        raise ValueError(
            f"dataset.annotations.path: {path!r} names the part, but the data at {records.root} "
            f"lacks folders train and val; name the {kind} itself, such as "
            f"dataset.annotations.path={one}"
        )
    folder = records.root if os.path.isdir(records.root) else os.path.dirname(records.root)
    named = os.path.splitext(os.path.basename(records.place))[0]  # `valid` means `val`
    paths = [path.replace("{part}", part) for part in (records.part, named)]
    path = paths[0]
    names = dict.fromkeys(each for path in paths for each in (path, path[:1].upper() + path[1:]))
    bases = (folder, f"{folder}/..", ".")
    if is_url(path) or (is_url(records.root) and not os.path.exists(path)):
        above = (records.root, records.root.rpartition("/")[0])
        urls = [path] if is_url(path) else [f"{base}/{each}" for base in above for each in names]
        for url in map(absolute_path, urls):
            with contextlib.suppress(NothingThere):
                return local_copy(url), f"{records.storage}, annotations {name} {url}"
        raise ValueError(
            f"{records.storage}, annotations {name}: no such {kind}: {' or '.join(urls)}; "
            f"{_remedy(records)}"
        )
    places = [os.path.abspath(os.path.join(base, name)) for base in bases for name in names]
    found = next(filter(os.path.exists, places), places[0])
    where = f"{records.storage}, annotations {name} {found}"
    there = os.path.isdir(found) if kind == "folder" else LabelFile.at(found)
    if not there:
        raise ValueError(
            f"{where}: no such {kind}; {_remedy(records)} (looked for "
            f"{' and '.join(dict.fromkeys(places[1:]))} too)"
        )
    return found, where


def _remedy(records: RecordsToLabel) -> str:
    mark = find_mark(records.place)
    if mark is not None and mark.field_classes:
        return "pack put them into the records: type dataset/annotations=in_records"
    return "set dataset.annotations.path"


def marks_of(files: Iterable[LabelFile | None]) -> str:
    """Hash paths, sizes and times of files, to detect changes."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        mark = "-" if file is None else f"{file.path} {file.size_bytes} {file.mtime_ns}"
        digest.update(mark.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()

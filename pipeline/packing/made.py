"""The mark of what packing made: which files, and the checksum of each file and record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.index import Index, write_index, write_whole
from datasets.parts import PackPlan, PartSummary, written_keys
from datasets.writing import mark_file, sync_file

MARK = ".packed.arrow"
ABOUT = ".packed.json"
_FORMAT = 1

Marks = dict[str, tuple[int, int]]
"""Size and CRC-32 by file name."""


def write_mark(
    folder: Path, plan: PackPlan, summaries: Sequence[PartSummary], about: Mapping[str, Any]
) -> None:
    """Write the mark of a split: keys and checksums of its records, and its files.

    Args:
        folder: The split as its writer has finished it.
        plan: The plan.
        summaries: All parts.
        about: The writer and how to read it.
    """
    known = {name: mark for s in summaries for name, mark in s.marks.items()}
    files = {
        name: known[name] if name in known else sync_file(folder / name)
        for name in files_in(folder)
        if name != MARK
    }
    write_index(
        folder / MARK,
        keys=written_keys(plan, summaries),
        columns={
            "crc32": np.concatenate([s.checksums for s in summaries]),
            "size_bytes": np.concatenate([s.sizes for s in summaries]),
        },
        metadata={"packed": _FORMAT, "files": files, **about},
    )


def read_mark(folder: Path) -> Index:
    """The mark of a split.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    path = folder / MARK
    if not path.is_file():
        raise ValueError(f"pack: {folder} has no {MARK}, so it was not made by pack")
    index = Index.open(path, verify=True)
    if index.metadata.get("packed") != _FORMAT:
        raise ValueError(f"pack: {path} is of another version than this one reads")
    return index


def write_about(folder: Path, splits: Sequence[str], recipe: Mapping[str, Any]) -> None:
    """Write what the whole is, beside its splits."""
    beside = {name: sync_file(folder / name) for name in os.listdir(folder) if name not in splits}
    text = json.dumps({"packed": _FORMAT, "splits": splits, "files": beside, "recipe": recipe})
    write_whole(folder / ABOUT, lambda file: file.write(text.encode()))


def packed_splits(folder: Path) -> dict[str, Path]:
    """The splits of what packing made, by name; a folder that is one split is itself.

    Raises:
        ValueError: It was not made by pack.
    """
    if (folder / MARK).is_file():
        return {folder.name: folder}
    about = _about(folder)
    return {name: folder / name for name in about["splits"]}


def check_made(folder: Path) -> None:
    """Refuse a folder that packing did not make, or that was changed since.

    Raises:
        ValueError: It is such a folder; the first difference is named.
    """
    about = _about(folder)
    expected: Marks = {name: tuple(mark) for name, mark in about["files"].items()}
    expected[ABOUT] = mark_file(folder / ABOUT)
    for split in about["splits"]:
        index = read_mark(folder / split)
        expected[f"{split}/{MARK}"] = mark_file(folder / split / MARK)
        files = index.metadata["files"]
        expected |= {f"{split}/{name}": tuple(mark) for name, mark in files.items()}
    found = files_in(folder)
    for name in sorted({*expected} ^ {*found}):
        what = "is new" if name in found else "is gone"
        raise _changed(folder, f"{name} {what}")
    for name, mark in expected.items():
        if mark_file(folder / name) != mark:
            raise _changed(folder, f"{name} is another")


def _changed(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"pack.overwrite: {folder} was changed since pack made it ({what}) and is left alone; move "
        f"it away, or choose another pack.path"
    )


def _about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text())
        if about["packed"] == _FORMAT:
            return about
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(
        f"pack: {folder} was not made by pack (no {ABOUT} that this version reads) and is left "
        f"alone; choose another path"
    )


def files_in(folder: Path) -> list[str]:
    """Names of all files below a folder, from there on, sorted; links count as files."""
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [os.path.relpath(os.path.join(root, name), folder) for name in names + links]
    return sorted(found)


def remove_hidden(folder: Path, names: Iterable[str]) -> None:
    """Remove files that are hidden: half of what a process wrote that was killed."""
    for name in names:
        if os.path.basename(name).startswith("."):
            (folder / name).unlink()

"""Split data into train, val and test: by existing folders or files, otherwise by key."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core import contracts
from penstock.core.contracts import (
    Annotations,
    RecordsToLabel,
    Storage,
)
from penstock.core.sample import MAX_RECORD_BYTES
from penstock.datasets.files.access import absolute_path, is_pattern, is_url, read_file
from penstock.datasets.files.clients import RETRY_S, AccessDenied, set_retry_s
from penstock.datasets.files.data_files import IMAGE_ENDINGS
from penstock.datasets.files.listings import look_at
from penstock.datasets.files.local_copies import local_copy
from penstock.datasets.records.annotated_storage import AnnotatedStorage
from penstock.datasets.records.hub_card import CardConfig, card_configs
from penstock.datasets.records.index import cached_selection
from penstock.datasets.records.split_names import SPLIT_OF, alike, is_split_word, parts_among
from penstock.datasets.records.subset import Subset

log = logging.getLogger(__name__)

Split = Literal["train", "val", "test"]

# Map longer selections from a file instead of sending them to every worker.
_MAPPED_ROWS = 1 << 16
_CHUNK_ROWS = 1 << 18
_NOT_BY_CHANCE = 1e-4
"""Below this probability, an empty validation split means that the data was split before."""
_PLACES = ("path", "table", "topic")
# Patterns of shards, by split and ending.
_SHARD_NAMES = (
    "{}-*-of-*{}",
    *(f"*{{}}[-_][0-9]*{ending}" for ending in (".tar", ".tar.gz", ".tgz", ".tar.zst")),
)
_DATA_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "data")
"""Folders that may contain the splits, next to a folder of labels."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The content of a folder or URL: names of its subfolders and files."""

    path: str
    folders: list[str]
    files: list[str]

    @classmethod
    def at(cls, path: str) -> Folder:
        """List a folder; the folders of a web server appear empty."""
        if is_url(path):
            path = absolute_path(path)
            with contextlib.suppress(AccessDenied):  # the reader reports it
                look = look_at(path)
                return cls(path, [*look.folders], [file.name for file in look.files])
            return cls(path, [], [])
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        folders = [entry.name for entry in entries if entry.is_dir()]
        return cls(path, folders, [entry.name for entry in entries if entry.is_file()])

    def __str__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> str:
        return name if is_url(name) else os.path.join(self.path, name)


@dataclass(frozen=True, slots=True)
class StorageRecipe:
    """Builds a configured storage for a split.

    Attributes:
        arguments: Arguments for the whole data, or for the training split if `val_path` is set.
        val_path: Path of the validation split; None: find it, or split the data.
        test_path: Path of the test split; None: find it, if any.
        classes: Fixed class names by field, such as the classes of a trained model. Other fields
            use the classes of the training split.
        retry_s: Seconds for which this process retries remote reads, once the recipe is used.
    """

    make: Callable[..., Storage]
    arguments: dict[str, Any]
    val_path: str | None = None
    test_path: str | None = None
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_record_bytes: int = MAX_RECORD_BYTES
    retry_s: float = RETRY_S

    def open(self, **changes: Any) -> Storage:
        """Build the storage with changed arguments; `path` also means a table or topic."""
        set_retry_s(self.retry_s)
        if "path" in changes:
            changes[self._place] = changes.pop("path")
        arguments = {**self.arguments, **changes}
        make, path = self.make, arguments.get("path")
        if isinstance(path, str) and is_url(path) and not getattr(make, "reads_urls", False):
            arguments["path"] = local_copy(path)
        elif isinstance(path, Mapping):  # one file per field
            files = path.items()
            arguments["path"] = {k: local_copy(v) if is_url(v) else v for k, v in files}
        made = make(**arguments)
        made.max_record_bytes = self.max_record_bytes
        return made

    def parts(self) -> dict[str, str]:
        """Return the configured or detected path of each split; empty if the data is not split."""
        set_retry_s(self.retry_s)
        path = self.arguments.get(self._place)
        if self._place == "table" and path is None and (self.val_path or self.test_path):
            raise ValueError(
                "dataset.val_path and dataset.test_path name tables or views here; name the one to "
                "train on in the same way: dataset.storage.table=<table>"
            )
        if self.val_path is not None:
            parts = {"train": str(path), "val": self.val_path}
        elif self._place == "path":
            find_inside = getattr(self.make, "parts_inside", None)
            inside = find_inside(path) if find_inside and isinstance(path, str) else None
            parts = find_parts(path) or inside or {}
        else:
            parts = {}
        return parts if self.test_path is None else {**parts, "test": self.test_path}

    @property
    def _place(self) -> str:
        """Return the name of the argument that locates a split: a path, a table or a topic."""
        return next((name for name in _PLACES if name in self.arguments), "path")

    def parts_with(self, split: Split) -> dict[str, str]:
        """Return `parts`; raise ValueError if `split` is ``test`` and missing."""
        parts = self.parts()
        if split == "test" and "test" not in parts:
            raise ValueError(
                f"{self.arguments.get(self._place)}: found no test split next to the training "
                f"and validation splits; if it is elsewhere, type "
                f"dataset.test_path=<folder or file>"
            )
        return parts


def open_split(
    recipe: StorageRecipe,
    *,
    split: Split,
    val_fraction: float,
    annotations: Annotations | None = None,
) -> Storage:
    """Open one split of a data set: ``train``, ``val`` or ``test``.

    `find_parts` finds the splits in `path`, unless `val_path` and `test_path` name them. Without a
    validation split, the hash of its key assigns a training record to validation: adding a record
    moves no other record. The test split is never used for validation.
    """
    if isinstance(val_fraction, bool) or not 0 <= val_fraction <= 1:
        raise ValueError(
            f"val_fraction: got {val_fraction!r}, expected a number from 0 to 1; for example 0.2"
        )
    if split not in ("train", "val", "test"):
        raise ValueError(f"split: got {split!r}, expected 'train', 'val' or 'test'")
    parts = recipe.parts_with(split)
    opened = _open_part(recipe, recipe.classes.get("label"), parts.get("train"))
    _refuse_splits(opened, recipe)
    part = "train" if "train" in parts else ""
    train = _annotated(opened, recipe, annotations, parts, part=part, classes=recipe.classes)
    if split in parts and (split != "train" or "val" in parts):
        if split == "train":
            return train
        other = _open_part(recipe, opened.index.class_names, parts[split])
        classes = train.field_classes if isinstance(train, AnnotatedStorage) else {}
        return _annotated(other, recipe, annotations, parts, part=split, classes=classes)
    if val_fraction == 0 and split == "train":
        return train
    rows = _hash_rows(train, split, val_fraction)
    if split == "val" and not len(rows) and (1 - val_fraction) ** len(train) < _NOT_BY_CHANCE:
        _say_once(
            f"{train}: none of its {len(train):,} records validates, as they are what a split by "
            f"dataset.val_fraction={val_fraction:g} left; for that share of them, type "
            f"dataset.val_fraction={1 - (1 - val_fraction) ** 2:g}"
        )
    return Subset(train, rows)


def find_parts(path: Any) -> dict[str, str] | None:
    """Find the splits ``train``, ``val`` and ``test`` in a folder; return None if it is not split.

    A split is a folder, a file such as ``train.lmdb``, or shards as hubs name them. Names contain
    common split words in any case: ``Training`` and ``Testing``, ``seg_train`` and ``seg_test``,
    ``train2017`` and ``val2017``. Splits may be one level down, in a folder such as ``images``.
    """
    if not isinstance(path, str | os.PathLike):
        return None
    if is_pattern(str(path)) if is_url(path) else not os.path.isdir(path):
        return None
    folder = Folder.at(absolute_path(str(path)))
    data = [name for name in folder.folders if name.lower() in _DATA_FOLDERS]
    for top in (folder, *(Folder.at(folder / name) for name in data)):
        for found in (_hub_parts(top), *alike(top.folders), *_sub_files(top)):
            if "train" in found and len(found) > 1:
                return _chosen(top, found)
        if len(top.folders) == 1 and is_split_word(top.folders[0]):
            return _alone(top)
    return None


def _alone(folder: Folder) -> dict[str, str]:
    """Return the only folder as the training split."""
    [name] = folder.folders
    if SPLIT_OF[name.lower()] != "train":
        raise ValueError(
            f"{folder}: holds {name} and no train; to use {name}, type "
            f"dataset.storage.path={folder / name}"
        )
    return {"train": str(folder / name)}


def _sub_files(folder: Folder) -> Iterator[dict[str, list[str]]]:
    """Group files such as ``train.lmdb``; next to images, ``train.csv`` is a list of images."""
    beside_images = bool(folder.folders) or any(
        name.lower().endswith(IMAGE_ENDINGS) for name in folder.files
    )
    for found in alike(name for name in folder.files if is_split_word(name.partition(".")[0])):
        if "val" in found or not beside_images:
            yield found


def _chosen(folder: Folder, found: Mapping[str, list[str]]) -> dict[str, str]:
    """Return one path per split; raise ValueError for several."""
    for names in found.values():
        if len(names) > 1:
            raise ValueError(
                f"{folder}: holds {' and '.join(names)}, expected one of them; name the parts with "
                f"dataset.storage.path={folder / names[0]} and dataset.val_path"
            )
    return {split: str(folder / names[0]) for split, names in found.items()}


@cache
def _say_once(text: str) -> None:
    log.warning("%s", text)


def _refuse_splits(storage: Storage, recipe: StorageRecipe) -> None:
    """Raise ValueError for classes that are named like splits."""
    if recipe.arguments.get("classes") is None:
        if parts := parts_among(storage.index.class_names or ()):
            train, other = parts
            raise ValueError(
                f"{storage}: its classes {train!r} and {other!r} look like parts of one data set; "
                f"name these with dataset.storage.path=<{train}> dataset.val_path=<{other}>, or, "
                f"if they are classes, all of them with dataset.storage.classes=[...]"
            )


def _hub_parts(folder: Folder) -> dict[str, list[str]]:
    """Find the splits of a hub data set: shards, folders, or files that the README lists.

    Shards are named ``train-00000-of-00004.parquet`` or ``imagenet-train-000000.tar``. With a
    ``dataset_dict.json``, each split is a folder.
    """
    if "dataset_dict.json" in folder.files:
        return next(alike(folder.folders), {})
    if "README.md" in folder.files and (said := _card_parts(folder)):
        return said
    tops = [folder, *(Folder.at(folder / "data") for name in folder.folders if name == "data")]
    for pattern in _SHARD_NAMES:
        for top in tops:
            shards = fnmatch.filter(top.files, pattern.format("train", ""))
            suffix = os.path.splitext(shards[0])[1] if shards else ""
            found: dict[str, list[str]] = {}
            for word, split in SPLIT_OF.items() if shards else ():
                names = pattern.format(word, suffix)
                if fnmatch.filter(top.files, names):
                    found.setdefault(split, []).append(_below(top, [names]))
            if found:
                return found
    return {}


def _card_parts(folder: Folder) -> dict[str, list[str]]:
    """Find the splits that a hub card names; empty for one split or none."""
    text = read_file(folder / "README.md", root=str(folder)).decode(errors="replace")
    configs = card_configs(text)
    chosen = next((each for each in configs if each.default), configs[0] if configs else None)
    if chosen is None:
        return {}
    if chosen.default or len(configs) == 1:
        if chosen.folder is not None and not chosen.files:
            return _hub_parts(Folder.at(folder / chosen.folder))
        named = next(alike(chosen.files), {})
        if len(named) > 1:
            return {
                split: [_below(folder, chosen.files[name]) for name in names]
                for split, names in named.items()
            }
    if len(configs) == 1:
        return {}
    lines = [f"{each.name} ({_typed(folder, each)})" for each in configs[:8]]
    raise ValueError(
        f"{folder}: is {len(configs)} data sets; type the path of one: {', '.join(lines)}"
        + (", ..." if len(configs) > len(lines) else "")
    )


def _typed(folder: Folder, config: CardConfig) -> str:
    """Return the override that selects one data set of a repository."""
    if config.folder is not None:
        return f"dataset.storage.path={folder / config.folder}"
    above = {path.rpartition("/")[0] for paths in config.files.values() for path in paths}
    if len(above) == 1 and above != {""} and not any(map(is_pattern, above)):
        return f"dataset.storage.path={folder / above.pop()}"
    paths = [f"'dataset.storage.path={_below(folder, p)}'" for p in config.files.values()]
    return paths[0] if paths else config.name


def _below(folder: Folder, patterns: Sequence[str]) -> str:
    place = str(folder) if is_url(str(folder)) else glob.escape(str(folder))
    return f"{place}/{patterns[0] if len(patterns) == 1 else '{' + ','.join(patterns) + '}'}"


def _opened(recipe: StorageRecipe, **changes: Any) -> Storage:
    """Open a storage and its index, to report a wrong path or class early."""
    storage = recipe.open(**changes)
    if not isinstance(storage, Storage):
        raise ValueError(
            f"storage {type(storage).__qualname__} is no Storage; derive it from "
            f"penstock.core.contracts.Storage"
        )
    if not isinstance(index := storage.index, contracts.Index):
        raise ValueError(
            f"storage {type(storage).__qualname__}: its index is a {type(index).__qualname__}, "
            f"expected an Index of core/contracts.py, such as a Table of datasets.records.table"
        )
    len(index)
    return storage


def _annotated(
    storage: Storage,
    recipe: StorageRecipe,
    annotations: Annotations | None,
    parts: Mapping[str, str],
    *,
    part: str,
    classes: Mapping[str, tuple[str, ...]],
) -> Storage:
    if annotations is None:
        return storage
    path = recipe.arguments.get("path")
    if not isinstance(path, str):
        raise ValueError(
            f"{storage}: annotations are kept next to the data, and its path is {path!r}; "
            f"give one path"
        )
    keys = storage.index.keys(np.arange(len(storage)))
    records = RecordsToLabel(
        storage=storage,
        keys=keys,
        root=absolute_path(path),
        place=absolute_path(parts.get(part, path)),
        part=part,
        classes=classes,
    )
    return AnnotatedStorage(storage, annotations.of(records))


def _open_part(recipe: StorageRecipe, names: Sequence[str] | None, path: str | None) -> Storage:
    """Open a split, or the whole data without `path`, with fixed class names if given."""
    changes: dict[str, Any] = {} if path is None else {"path": path}
    if names is not None and "classes" in inspect.signature(recipe.make).parameters:
        return _opened(recipe, **changes, classes=list(names))
    opened = _opened(recipe, **changes)
    found = opened.index.class_names
    if names is not None and found is not None and tuple(found) != tuple(names):
        extra = [name for name in found if name not in names]
        what = f"class {extra[0]!r} is not trained on" if extra else "has other classes"
        raise ValueError(
            f"{opened}: {what}, and this storage lacks an argument `classes` that would make the "
            f"class ids equal; give all parts the same classes"
        )
    return opened


def _hash_rows(storage: Storage, split: Split, val_fraction: float) -> NDArray[Any]:
    """Return the rows of a split, int32 or int64 [n]; map a long selection from the cache."""
    index, count = storage.index, len(storage)
    dtype = np.int32 if count < 1 << 31 else np.int64

    def compute() -> NDArray[Any]:
        chunks = (range(n, min(n + _CHUNK_ROWS, count)) for n in range(0, count, _CHUNK_ROWS))
        keys = (key for rows in chunks for key in index.raw_keys(np.array(rows)))
        in_val = np.fromiter(is_val(keys, val_fraction), np.bool_, count)
        return np.flatnonzero(in_val if split == "val" else ~in_val).astype(dtype)

    if val_fraction == 0 or val_fraction == 1:
        whole = (split == "val") == (val_fraction == 1)
        return np.arange(count if whole else 0, dtype=dtype)
    if count < _MAPPED_ROWS:
        return compute()
    return cached_selection(f"{storage.fingerprint()} {val_fraction!r} {split}", compute)


def is_val(keys: Iterable[bytes], val_fraction: float) -> Iterable[bool]:
    """Yield whether each key belongs to validation: its 64-bit hash is below the share of 2^64."""
    threshold = round(val_fraction * 2**64)
    blake2b, from_bytes = hashlib.blake2b, int.from_bytes
    for key in keys:
        yield from_bytes(blake2b(key, digest_size=8).digest(), "little") < threshold

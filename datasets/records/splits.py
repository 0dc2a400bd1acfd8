"""Split data into train, val and test: by existing folders or files, otherwise by key."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Annotations, RecordsToLabel, Storage
from penstock.core.sample import MAX_RECORD_BYTES
from penstock.datasets.files.access import absolute_path, is_pattern, is_url
from penstock.datasets.files.clients import RETRY_S, AccessDenied, set_retry_s
from penstock.datasets.files.data_files import IMAGE_ENDINGS
from penstock.datasets.files.local_copies import hub_copy, local_copy
from penstock.datasets.files.remote import look_at
from penstock.datasets.records.labels import read_labels
from penstock.datasets.records.matching import match_keys
from penstock.datasets.records.split_names import SPLIT_OF, alike, parts_among
from penstock.datasets.records.table import cached_selection
from penstock.datasets.records.views import AnnotatedStorage, Subset

Split = Literal["train", "val", "test"]

_CHUNK_ROWS = 1 << 18
_PLACES = ("path", "table", "topic")
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_SHARD_NUMBER = re.compile(r"(?<=[-_])\d+")
_DATA_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit", "data")
"""Folders that may contain the splits, next to a folder of labels."""


@dataclass(frozen=True, slots=True)
class StorageRecipe:
    """Builds a configured storage for a split.

    With `val_path`, `arguments` open the training split. `classes` are fixed class names by field.
    """

    make: Callable[..., Storage]
    arguments: dict[str, Any]
    val_path: str | None = None
    test_path: str | None = None
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_record_bytes: int = MAX_RECORD_BYTES
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        path = self.arguments.get("path")
        if isinstance(path, str):
            path = hub_copy(path) if path.startswith("hf://") else os.path.expanduser(path)
            object.__setattr__(self, "arguments", {**self.arguments, "path": path})
        for name in ("val_path", "test_path"):
            if (place := getattr(self, name)) is not None:
                object.__setattr__(self, name, os.path.expanduser(place))

    def open(self, **changes: Any) -> Storage:
        """Build the storage with changed arguments; `path` also means a table or topic."""
        set_retry_s(self.retry_s)
        if "path" in changes:
            changes[self._place] = changes.pop("path")
        arguments = {**self.arguments, **changes}
        path, reads_urls = arguments.get("path"), getattr(self.make, "reads_urls", False)
        if isinstance(path, str) and is_url(path) and not reads_urls:
            arguments["path"] = local_copy(path)
        made = self.make(**arguments)
        made.max_record_bytes = self.max_record_bytes
        return made

    def parts(self) -> dict[str, Any]:
        """Return the configured or detected path of each split; empty if the data is not split."""
        set_retry_s(self.retry_s)
        path = self.arguments.get(self._place)
        parts: dict[str, Any] = {}
        if self.val_path is not None:
            parts = {"train": path, "val": self.val_path}
        elif self._place == "path":
            find_inside = getattr(self.make, "parts_inside", None)
            parts = find_parts(path) or (find_inside(path) if find_inside else {})
        return parts if self.test_path is None else {**parts, "test": self.test_path}

    @property
    def _place(self) -> str:
        """Return the name of the argument that locates a split: a path, a table or a topic."""
        return next((name for name in _PLACES if name in self.arguments), "path")

    def parts_with(self, split: Split) -> dict[str, Any]:
        parts = self.parts()
        if split == "test" and "test" not in parts:
            said = "found no test split; type dataset.test_path=<folder or file>"
            raise ValueError(f"{self.arguments.get(self._place)}: {said}")
        return parts


def open_split(
    recipe: StorageRecipe,
    *,
    split: Split,
    val_fraction: float,
    annotations: Annotations | None = None,
) -> Storage:
    """Open one split of a data set: ``train``, ``val`` or ``test``.

    Without a validation split, the hash of its key assigns a training record to validation.
    """
    parts = recipe.parts_with(split)
    opened = _opened(recipe, recipe.classes.get("label"), parts.get("train"))
    alike_classes = parts_among(opened.index.class_names or ())
    if alike_classes and recipe.arguments.get("classes") is None:
        first, second = alike_classes
        remedy = f"dataset.storage.path=<{first}> dataset.val_path=<{second}>"
        if "folder" in recipe.arguments:  # of an archive
            remedy = f"dataset.storage.folder={os.path.join(recipe.arguments['folder'], first)}"
        raise ValueError(
            f"{opened}: its classes {first!r} and {second!r} look like parts of one data set; name "
            f"these with {remedy}, or, if they are classes, all of them with "
            f"dataset.storage.classes=[...]"
        )

    def annotate(storage: Storage, part: str, classes: Mapping[str, tuple[str, ...]]) -> Storage:
        if annotations is None:
            return storage
        path = recipe.arguments.get("path")
        if not isinstance(path, str):
            raise ValueError(f"{storage}: annotations lie next to the data; give one path")
        keys, root = storage.index.keys(np.arange(len(storage))), absolute_path(path)
        place = absolute_path(parts.get(part, path))
        records = RecordsToLabel(
            storage=storage, keys=keys, root=root, place=place, part=part, classes=classes
        )
        return AnnotatedStorage(storage, annotations.of(records))

    train = annotate(opened, "train" if "train" in parts else "", recipe.classes)
    if split == "train" and (val_fraction == 0 or "val" in parts):
        return train
    if split in parts and split != "train":
        other = _opened(recipe, opened.index.class_names, parts[split])
        _refuse_shared_rows(recipe, {parts.get("train"): opened, parts[split]: other})
        return annotate(other, split, train.index.field_classes)
    return Subset(train, _hash_rows(train, split, val_fraction))


def find_parts(path: Any) -> dict[str, str]:
    """Find the splits ``train``, ``val`` and ``test`` in a folder; empty if it is not split.

    A split is a folder, a file such as ``train.lmdb``, or shards as hubs name them, maybe in a
    folder such as ``images``. Names contain split words: ``Training``, ``seg_train``, ``val2017``.
    """
    if not isinstance(path, str | os.PathLike):
        return {}
    if is_pattern(str(path)) if is_url(path) else not os.path.isdir(path):
        return {}
    root = absolute_path(str(path))
    above = [name for name in _listed(root)[0] if name.lower() in _DATA_FOLDERS]
    for top in (root, *(f"{root}/{name}" for name in above)):
        folders, files = _listed(top)
        shards = [name for name in files if "-of-" in name or name.endswith(_TAR_ENDINGS)]
        patterns = {_SHARD_NUMBER.sub("*", name) for name in shards} - {*shards}
        singles = alike(name for name in files if name.partition(".")[0].lower() in SPLIT_OF)
        # Next to images, ``train.csv`` is a list of images.
        images = folders or any(name.lower().endswith(IMAGE_ENDINGS) for name in files)
        lists = (found for found in singles if "val" in found or not images)
        for found in (*alike(patterns), *alike(folders), *lists):
            if "train" in found and len(found) > 1:
                return _chosen(top, found)
        if len(folders) == 1 and (split := SPLIT_OF.get(folders[0].lower())):
            only = f"{top}/{folders[0]}"
            if split != "train":
                raise ValueError(f"{only}: no train beside it; type dataset.storage.path={only}")
            return {"train": only}
    return {}


def _listed(path: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of the folders and files in a folder, without hidden ones."""
    there: Any = ([], [])
    with contextlib.suppress(AccessDenied):
        there = look_at(path) if is_url(path) else next(os.walk(path), (path, [], []))[1:]
    folders, files = (sorted(n for n in names if not n.startswith(".")) for names in there)
    return folders, files


def _chosen(top: str, found: Mapping[str, list[str]]) -> dict[str, str]:
    for names in found.values():
        if len(names) > 1:
            raise ValueError(
                f"{top}: holds {' and '.join(names)}, expected one of them; type "
                f"dataset.storage.path={top}/{names[0]} and dataset.val_path"
            )
    escape = not is_url(top) and any("*" in name for [name] in found.values())
    return {
        split: f"{glob.escape(top) if escape else top}/{name}" for split, [name] in found.items()
    }


def _opened(recipe: StorageRecipe, names: Sequence[str] | None, path: str | None) -> Storage:
    """Open a split, or the whole data without `path`, with fixed class names if given."""
    changes: dict[str, Any] = {} if path is None else {"path": path}
    if names is not None and "classes" in inspect.signature(recipe.make).parameters:
        changes["classes"] = list(names)
    opened = recipe.open(**changes)
    found = opened.index.class_names
    if names is not None and found is not None and tuple(found) != tuple(names):
        extra = next((name for name in found if name not in names), found[0])
        said = "is not trained on, or in another order; give all parts the same classes"
        raise ValueError(f"{opened}: class {extra!r} {said}")
    return opened


def _refuse_shared_rows(recipe: StorageRecipe, storages: Mapping[Any, Storage]) -> None:
    """Raise ValueError if a row of a label table names records of two parts."""
    table, columns = (recipe.arguments.get(name) for name in ("labels", "label_columns"))
    if not isinstance(table, str) or not os.path.isfile(table):
        return
    first, second = (set(each.index.keys(np.arange(len(each)))) for each in storages.values())
    if both := sorted(first & second):
        where = f"dataset.storage.labels={table}"
        classes = next(iter(storages.values())).index.class_names
        names = list(read_labels(table, columns, classes=classes, where=where))
        keys = [f"{place or recipe.arguments['path']}/{key}" for place in storages for key in both]
        match_keys(keys, names, place="", where=where)


def _hash_rows(storage: Storage, split: Split, val_fraction: float) -> NDArray[Any]:
    index, count = storage.index, len(storage)

    def compute() -> NDArray[Any]:
        chunks = (range(n, min(n + _CHUNK_ROWS, count)) for n in range(0, count, _CHUNK_ROWS))
        keys = (key for rows in chunks for key in index.raw_keys(np.array(rows)))
        in_val = np.fromiter(is_val(keys, val_fraction), np.bool_, count)
        return np.flatnonzero(in_val == (split == "val"))

    return cached_selection(f"{storage.fingerprint()} {val_fraction!r} {split}", compute)


def is_val(keys: Iterable[bytes], val_fraction: float) -> Iterable[bool]:
    """Yield whether each key belongs to validation: its 64-bit hash is below the share of 2^64."""
    threshold = round(val_fraction * 2**64)
    blake2b, from_bytes = hashlib.blake2b, int.from_bytes
    for key in keys:
        yield from_bytes(blake2b(key, digest_size=8).digest(), "little") < threshold

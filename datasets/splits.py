"""Training and validation data: two folders or files where they exist, else a hash of the key."""

from __future__ import annotations

import glob
import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datasets.annotated_storage import AnnotatedStorage
from datasets.index import Index
from datasets.index_cache import cached_selection
from datasets.protocols import Annotations, ColumnStorage, RecordsToLabel, Storage
from datasets.subset import ColumnSubset, Subset

Split = Literal["train", "val"]

# Selections longer than this are mapped from a file rather than sent to every worker.
_MAPPED_ROWS = 1 << 16
_CONTRACT = ("__len__", "read", "index", "fingerprint")
# Of shards, by part and ending.
_SHARD_NAMES = ("{}-*-of-*{}", "*{}[-_][0-9]*.tar")
_OTHER_NAMES = ("valid", "validation", "test", "testing", "dev")


@dataclass(frozen=True, slots=True)
class StorageRecipe:
    """How a storage is made: what a config says, before it is known which split is wanted."""

    make: Callable[..., Storage]
    arguments: dict[str, Any]

    def open(self, **changes: Any) -> Storage:
        """Make the storage, with some arguments changed."""
        return self.make(**{**self.arguments, **changes})


def open_split(
    recipe: StorageRecipe,
    *,
    split: Split,
    val_fraction: float,
    annotations: Annotations | None = None,
) -> Storage:
    """Open the training or the validation part of a data set.

    Where `path` holds both ``train`` and ``val`` (folders, or files such as ``train.lmdb`` and
    ``val.lmdb``; shards such as ``validation-00000-of-00002.parquet`` or ``val-000000.tar``), these
    are the parts. Otherwise a record belongs to validation if the hash of
    its key says so: adding a record moves no other.

    Args:
        recipe: The storage of the whole.
        split: ``train`` or ``val``.
        val_fraction: Share of the records that validate, where no folders decide it; 0: none.
        annotations: What else is known of the records.

    Raises:
        ValueError: The fraction is none, a path is missing, or the parts' classes disagree.
    """
    if isinstance(val_fraction, bool) or not 0 <= val_fraction <= 1:
        raise ValueError(
            f"val_fraction: got {val_fraction!r}, expected a number from 0 to 1; for example 0.2"
        )
    if split not in ("train", "val"):
        raise ValueError(f"split: got {split!r}, expected 'train' or 'val'")
    parts = find_parts(recipe.arguments.get("path")) or _parts_inside(recipe)
    if parts is None:
        whole = _annotated(_opened(recipe), recipe, annotations)
        if val_fraction == 0 and split == "train":
            return whole
        kind = ColumnSubset if isinstance(whole, ColumnStorage) else Subset
        return kind(whole, _hash_rows(whole, split, val_fraction))
    train = _opened(recipe, path=parts["train"])
    train = _annotated(train, recipe, annotations, part="train")
    if split == "train":
        return train
    val = _open_val(recipe, parts["val"], train)
    classes = train.field_classes if isinstance(train, AnnotatedStorage) else {}
    return _annotated(val, recipe, annotations, part="val", classes=classes)


def find_parts(path: Any) -> dict[str, str] | None:
    """Paths of ``train`` and ``val`` in the folder `path`, or None if it has not both.

    Raises:
        ValueError: There is a ``train`` whose counterpart has another name than ``val``.
    """
    if not isinstance(path, str | os.PathLike) or not os.path.isdir(path):
        return None
    folder = Path(path)
    if parts := _hub_parts(folder):
        return parts
    for train in (folder / "train", *sorted(folder.glob("train.*"))):
        val = train.with_name("val" + train.suffix)
        if train.exists() and val.exists() and train.is_dir() == val.is_dir():
            return {"train": str(train), "val": str(val)}
    if (folder / "train").is_dir():
        for name in _OTHER_NAMES:
            if (folder / name).is_dir():
                raise ValueError(
                    f"{folder}: holds train and {name}, expected train and val; rename {name} to "
                    f"val, or set dataset.storage.path={folder / 'train'} to split that"
                )
        if [entry.name for entry in folder.iterdir() if entry.is_dir()] == ["train"]:
            raise ValueError(
                f"{folder}: holds train and no val; set dataset.storage.path={folder / 'train'} "
                f"to split that by dataset.val_fraction, or put a folder val beside it"
            )
    return None


def _parts_inside(recipe: StorageRecipe) -> dict[str, str] | None:
    """The parts that a storage finds in a file, if it looks for any: see `Hdf5Storage`."""
    find: Callable[[str], dict[str, str] | None] | None
    find = getattr(recipe.make, "parts_inside", None)
    path = recipe.arguments.get("path")
    return find(path) if find is not None and isinstance(path, str) else None


def _hub_parts(folder: Path) -> dict[str, str] | None:
    """The parts of a folder laid out as the public hubs do: by shards, or by their own folders.

    Shards are named ``train-00000-of-00004.parquet`` or ``imagenet-train-000000.tar``; in a folder
    with a ``dataset_dict.json``, every part is a folder.
    """
    val_names = ("val", *_OTHER_NAMES)
    if (folder / "dataset_dict.json").is_file():
        parts = {name: str(folder / name) for name in ("train", *val_names)
                 if (folder / name).is_dir()}  # fmt: skip
    else:
        found = (
            (top, names, shard.suffix)
            for names in _SHARD_NAMES
            for top in (folder, folder / "data")
            for shard in top.glob(names.format("train", ""))
        )
        top, names, suffix = next(found, (folder, "", ""))
        parts = {
            name: str(Path(glob.escape(str(top)), names.format(name, suffix)))
            for name in ("train", *val_names)
            if names and next(top.glob(names.format(name, suffix)), None)
        }
    for name in ("val", "valid", "validation"):
        if "train" in parts and name in parts:
            return {"train": parts["train"], "val": parts[name]}
    if len(parts) > 1 and "train" in parts:
        raise ValueError(
            f"{folder}: holds {' and '.join(parts)}, expected train and validation; set "
            f"dataset.storage.path='{parts['train']}' to split that"
        )
    return None


def _opened(recipe: StorageRecipe, **changes: Any) -> Storage:
    """A storage whose index is known, so that a wrong path or class is said here."""
    storage = recipe.open(**changes)
    # Looked for in the class first: a property may take a scan.
    lacking = [n for n in _CONTRACT if not hasattr(type(storage), n) and not hasattr(storage, n)]
    if lacking:
        raise ValueError(
            f"storage {type(storage).__qualname__} has no {', '.join(lacking)}; a storage has "
            f"{', '.join(_CONTRACT)}: see Storage in datasets/protocols/storage.py"
        )
    len(storage.index)
    return storage


def _annotated(
    storage: Storage,
    recipe: StorageRecipe,
    annotations: Annotations | None,
    *,
    part: str = "",
    classes: Mapping[str, tuple[str, ...]] | None = None,
) -> Storage:
    """A storage with its annotations, if any are asked for."""
    if annotations is None:
        return storage
    path = recipe.arguments.get("path")
    if not isinstance(path, str):
        raise ValueError(
            f"{storage}: annotations lie beside the data, and its path is {path!r}; give one path"
        )
    keys = storage.index.keys(np.arange(len(storage)))
    records = RecordsToLabel(
        storage=storage, keys=keys, root=os.path.abspath(path), part=part, classes=classes or {}
    )
    return AnnotatedStorage(storage, annotations.of(records))


def _open_val(recipe: StorageRecipe, path: str, train: Storage) -> Storage:
    """Open the validation part with the class ids of the training part."""
    names = train.index.class_names
    if names is not None and "classes" in inspect.signature(recipe.make).parameters:
        return _opened(recipe, path=path, classes=list(names))
    val = _opened(recipe, path=path)
    found = val.index.class_names
    if names is not None and found is not None and found != names:
        extra = [name for name in found if name not in names]
        what = (
            f"class {extra[0]!r} is in val alone" if extra else "val has other classes than train"
        )
        raise ValueError(
            f"{val}: {what}, and this storage has no argument `classes` by which the class ids "
            f"could be made equal; give both parts the same classes"
        )
    return val


def _hash_rows(storage: Storage, split: Split, val_fraction: float) -> NDArray[Any]:
    """Rows of one part, int32 or int64 [n]; a long selection is mapped from the cache."""
    index = storage.index
    dtype = np.int32 if len(index) < 1 << 31 else np.int64

    def compute() -> NDArray[Any]:
        if isinstance(index, Index):
            keys: Iterable[bytes] = index.iter_raw_keys()
        else:
            keys = (key.encode() for key in index.keys(np.arange(len(index))))
        in_val = np.fromiter(is_val(keys, val_fraction), np.bool_, len(index))
        return np.flatnonzero(in_val if split == "val" else ~in_val).astype(dtype)

    if val_fraction == 0 or val_fraction == 1:
        whole = (split == "val") == (val_fraction == 1)
        return np.arange(len(index) if whole else 0, dtype=dtype)
    if len(index) < _MAPPED_ROWS:
        return compute()
    return cached_selection(f"{storage.fingerprint()} {val_fraction!r} {split}", compute)


def is_val(keys: Iterable[bytes], val_fraction: float) -> Iterable[bool]:
    """Whether each key belongs to validation: its 64-bit hash is below that share of 2^64."""
    threshold = round(val_fraction * 2**64)
    blake2b, from_bytes = hashlib.blake2b, int.from_bytes
    for key in keys:
        yield from_bytes(blake2b(key, digest_size=8).digest(), "little") < threshold

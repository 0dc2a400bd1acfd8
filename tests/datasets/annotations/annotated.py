"""Image folders with label files, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.image_folder import ImageFolder


def write_images(folder: Path, names: Sequence[str]) -> None:
    """Files that are images by name alone."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"image " + name.encode())


def open_annotated(
    root: Path, annotations: Any, *, split: Any = "train", fraction: float = 0
) -> Any:
    """The image folder at `root` with its annotations."""
    recipe = StorageRecipe(ImageFolder, {"path": str(root), "labels": None})
    return open_split(recipe, split=split, val_fraction=fraction, annotations=annotations)


def fields_of(storage: Any) -> list[dict[str, Any] | str]:
    """The annotated fields of every record, or why it is bad."""
    records: list[Record | BadRecord] = storage.read(np.arange(len(storage)))
    return [
        r.cause if isinstance(r, BadRecord) else {k: v for k, v in r.fields.items() if k != "image"}
        for r in records
    ]

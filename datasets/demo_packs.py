"""The demo set in every other form, each written by the library that the form is from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datasets.protocols import Storage
from datasets.storages.image_folder import ImageFolder

MEMMAP_SIDE = 32


def pack_demo(root: Path, storage_name: str, split: str, classes: tuple[str, ...]) -> None:
    """Write a split of the demo set below `root` in the form that a storage reads.

    Args:
        root: The demo set, with its images.
        storage_name: One of `FORMS`.
        split: ``train`` or ``val``.
        classes: Class names by id.
    """
    ending, write = FORMS[storage_name]
    path = root / storage_name / f"{split}{ending}"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write(path, ImageFolder(str(root / "images" / split), classes=list(classes)))


def _write_lmdb(path: Path, folder: Storage) -> None:
    from datasets.formats.lmdb_writer import write_lmdb

    write_lmdb(path, folder)


def _write_memmap(path: Path, folder: Storage) -> None:
    """Arrays have rows of one size and the photographs differ: each becomes a square, by area.

    That loses the ratio of their sides and cuts nothing off.
    """
    import cv2

    pixels = np.empty((len(folder), MEMMAP_SIDE, MEMMAP_SIDE, 3), np.uint8)
    for row, record in zip(pixels, folder.read(np.arange(len(folder))), strict=True):
        jpeg = np.frombuffer(record.fields["image"], np.uint8)  # type: ignore[union-attr]
        image = cv2.cvtColor(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        cv2.resize(image, (MEMMAP_SIDE, MEMMAP_SIDE), dst=row, interpolation=cv2.INTER_AREA)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        np.save(temporary / "images.npy", pixels)
        np.save(temporary / "labels.npy", folder.index.column("label"))
        (temporary / "classes.txt").write_text("\n".join(folder.index.class_names or ()) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # made above, by this call
        raise


FORMS: dict[str, tuple[str, Callable[[Path, Storage], None]]] = {
    "lmdb": ("", _write_lmdb),
    "memmap": ("", _write_memmap),
}
"""Ending of a split's name and how it is written, by the storage that reads it."""

"""Write the demo set in other forms: by each form's writer, or as tables of image files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.core.contracts import Storage, Writer
from penstock.core.files import write_lines
from penstock.core.registry import components
from penstock.core.sample import Record
from penstock.datasets.records.views import Subset
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.writing import write_storage

SQUARE_SIDE = 32
TABLES = ("csv", "jsonl")
"""Forms that name image files; pack does not write them."""

_STREAMED = ("jsonl", "webdataset")


def demo_forms() -> tuple[str, ...]:
    """Return the storages and sources for which the demo set can be written."""
    return (*TABLES, *(component.name for component in components("writer")))


def pack_demo(root: Path, storage_name: str, split: str, classes: tuple[str, ...]) -> None:
    """Write a split of the demo set below `root` in the form that a storage reads."""
    folder = root / storage_name
    if any(folder.glob(f"{split}*")):
        return
    source: Storage = ImageFolder(str(root / "images" / split), classes=list(classes))
    if storage_name in _STREAMED:  # by number, which mixes the classes
        numbers = [key.rpartition("/")[2] for key in source.index.keys(np.arange(len(source)))]
        source = Subset(source, np.argsort(numbers, kind="stable"))
    if storage_name in TABLES:
        _write_table(folder / f"{split}.{storage_name}", source)
        return
    writer: Writer = {each.name: each.target for each in components("writer")}[storage_name]()
    recode = Square() if "files" in writer.cannot_hold else None  # arrays
    write_storage(writer, folder / split, source, recode=recode)


class Square:
    """Decodes an image and shrinks it to uint8 [32, 32, 3]: arrays need rows of one size."""

    counts: Mapping[str, int] = {}

    def __call__(self, record: Record) -> Record:
        """Decode and shrink the image of a record."""
        import cv2

        jpeg = np.frombuffer(record.fields["image"], np.uint8)
        image = cv2.cvtColor(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        pixels = cv2.resize(image, (SQUARE_SIDE, SQUARE_SIDE), interpolation=cv2.INTER_AREA)
        return replace(record, fields={**record.fields, "image": pixels})


def _write_table(path: Path, source: Storage) -> None:
    """Write a table of image files and their classes, and copies of the files beside it."""
    images = Path("images", path.stem)
    shutil.copytree(path.parent.parent / images, path.parent / images, dirs_exist_ok=True)
    keys = source.index.keys(np.arange(len(source)))
    rows = [{"image": f"{images}/{key}", "label": key.partition("/")[0]} for key in keys]
    if path.suffix == ".csv":
        write_lines(path, ["image,label", *(",".join(row.values()) for row in rows)])
    else:
        write_lines(path, map(json.dumps, rows))
        write_lines(path.parent / "classes.txt", source.index.class_names or ())

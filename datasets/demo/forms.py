"""Write the demo set in other forms: by each form's writer, or as tables of image files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.contracts import Storage, Writer
from penstock.core.files import write_whole
from penstock.core.registry import components, find
from penstock.core.sample import Record
from penstock.datasets.records.subset import Subset
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.writing import write_storage

SQUARE_SIDE = 32
TABLES = ("csv", "jsonl")
"""Forms that name image files; pack does not write them."""

_ARRAYS = ("memmap", "npy_shards", "pt_shards")
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
    component = find(f"writer/{storage_name}")
    assert component is not None
    writer: Writer = component.target()
    is_array = storage_name in _ARRAYS or "files" in writer.cannot_hold
    write_storage(writer, folder / split, source, recode=Square() if is_array else None)


class Square:
    """Decodes an image and shrinks it to a square, uint8 [32, 32, 3], by area.

    Arrays need rows of one size. Shrinking changes the aspect ratio but cuts nothing off.
    """

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
    names = source.index.class_names or ()
    rows: list[dict[str, Any]] = []
    for record in source.read(np.arange(len(source))):
        assert isinstance(record, Record)
        name = f"images/{path.stem}/{record.key}"
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(record.fields["image"])
        rows.append({"image": name, "label": names[record.fields["label"]]})
    text = io.StringIO()
    if path.suffix == ".csv":
        table = csv.DictWriter(text, ["image", "label"])
        table.writeheader()
        table.writerows(rows)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
        lines = "\n".join(names) + "\n"
        write_whole(path.parent / "classes.txt", lambda file: file.write(lines.encode()))
    write_whole(path, lambda file: file.write(text.getvalue().encode()))

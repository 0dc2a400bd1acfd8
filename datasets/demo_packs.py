"""The demo set in every other form, each written by the library that the form is from."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.index import write_whole
from datasets.protocols import Storage
from datasets.storages.image_folder import ImageFolder

SQUARE_SIDE = 32
_SHARD_ROWS = 500


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


def _records(folder: Storage) -> list[tuple[str, bytes, int]]:
    """Key, encoded image and class id of every record."""
    records = folder.read(np.arange(len(folder)))
    return [(r.key, r.fields["image"], r.fields["label"]) for r in records]  # type: ignore[union-attr]


def _mixed(folder: Storage) -> list[tuple[str, bytes, int]]:
    """The records in the order of their numbers, for streams: no class comes before the others."""
    return sorted(_records(folder), key=lambda row: row[0].rpartition("/")[2])


def _write_lmdb(path: Path, folder: Storage) -> None:
    from datasets.writers.lmdb import LmdbWriter
    from datasets.writing import write_storage

    write_storage(LmdbWriter(), path, folder)


def _hub_table(folder: Storage) -> Any:
    """A table as the public hubs lay out a data set of images and classes."""
    import json

    import pyarrow as pa

    keys, images, labels = zip(*_records(folder), strict=True)
    features = {"image": {"_type": "Image"},
                "label": {"names": folder.index.class_names, "_type": "ClassLabel"}}  # fmt: skip
    about = json.dumps({"info": {"features": features}})
    table = pa.table(
        {
            "image": [{"bytes": b, "path": k} for k, b in zip(keys, images, strict=True)],
            "label": list(labels),
        }
    )
    return table.replace_schema_metadata({"huggingface": about})


def _write_parquet(path: Path, folder: Storage) -> None:
    import pyarrow.parquet as pq

    table = _hub_table(folder)
    write_whole(path, lambda file: pq.write_table(table, file, row_group_size=100))


def _write_arrow(path: Path, folder: Storage) -> None:
    import pyarrow as pa

    table = _hub_table(folder)

    def write(file: Any) -> None:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)

    write_whole(path, write)


def _write_csv(path: Path, folder: Storage) -> None:
    import csv
    import io

    assert folder.index.class_names is not None
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["image", "label"])
    for key, image, label in _records(folder):
        name = f"images/{path.stem}/{key}"
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
        rows.writerow([name, folder.index.class_names[label]])
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _write_jsonl(path: Path, folder: Storage) -> None:
    import json

    assert folder.index.class_names is not None
    lines = []
    for key, image, label in _mixed(folder):
        name = f"images/{path.stem}/{key}"
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
        lines.append(json.dumps({"image": name, "label": folder.index.class_names[label]}))
    names = "\n".join(folder.index.class_names) + "\n"
    write_whole(path.parent / "classes.txt", lambda file: file.write(names.encode()))
    text = "\n".join(lines) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def _squares(folder: Storage) -> NDArray[np.uint8]:
    """Images of one size, uint8 [N, 32, 32, 3], by area.

    Arrays have rows of one size and the photographs differ: each becomes a square. That loses
    the ratio of their sides and cuts nothing off.
    """
    import cv2

    pixels = np.empty((len(folder), SQUARE_SIDE, SQUARE_SIDE, 3), np.uint8)
    for row, record in zip(pixels, folder.read(np.arange(len(folder))), strict=True):
        jpeg = np.frombuffer(record.fields["image"], np.uint8)  # type: ignore[union-attr]
        image = cv2.cvtColor(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        cv2.resize(image, (SQUARE_SIDE, SQUARE_SIDE), dst=row, interpolation=cv2.INTER_AREA)
    return pixels


def _write_arrays(path: Path, folder: Storage, write: Callable[[Path], None]) -> None:
    """Make a folder whole, with the names of the classes in it."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        write(temporary)
        (temporary / "classes.txt").write_text("\n".join(folder.index.class_names or ()) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # made above, by this call
        raise


def _write_hdf5(path: Path, folder: Storage) -> None:
    import io

    import h5py

    keys, images, labels = zip(*_records(folder), strict=True)
    whole = io.BytesIO()
    with h5py.File(whole, "w") as file:
        file["keys"], file["labels"] = list(keys), list(labels)
        file.attrs["class_names"] = list(folder.index.class_names or ())
        lists = file.create_dataset("images", len(images), h5py.vlen_dtype(np.uint8))
        for row, image in enumerate(images):
            lists[row] = np.frombuffer(image, np.uint8)
    write_whole(path, lambda file: file.write(whole.getvalue()))


def _write_sqlite(path: Path, folder: Storage) -> None:
    import sqlite3

    assert folder.index.class_names is not None
    names = folder.index.class_names
    temporary = path.with_name(f".{path.name}-unfinished")
    temporary.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(temporary)) as database, database:
        database.execute("CREATE TABLE samples (key TEXT UNIQUE, label TEXT, image BLOB)")
        rows = ((key, names[label], image) for key, image, label in _records(folder))
        database.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
    os.replace(temporary, path)


def _write_memmap(path: Path, folder: Storage) -> None:
    def write(temporary: Path) -> None:
        np.save(temporary / "images.npy", _squares(folder))
        np.save(temporary / "labels.npy", folder.index.column("label"))

    _write_arrays(path, folder, write)


def _write_npy_shards(path: Path, folder: Storage) -> None:
    def write(temporary: Path) -> None:
        pixels, labels = _squares(folder), folder.index.column("label")
        for shard, start in enumerate(range(0, len(pixels), _SHARD_ROWS)):
            rows = slice(start, start + _SHARD_ROWS)
            np.save(temporary / f"images_{shard:03d}.npy", pixels[rows])
            np.save(temporary / f"labels_{shard:03d}.npy", labels[rows])

    _write_arrays(path, folder, write)


def _write_pt_shards(path: Path, folder: Storage) -> None:
    import torch

    def write(temporary: Path) -> None:
        pixels, labels = _squares(folder), folder.index.column("label")
        for shard, start in enumerate(range(0, len(pixels), _SHARD_ROWS)):
            rows = slice(start, start + _SHARD_ROWS)
            tensors = {"images": torch.tensor(pixels[rows]), "labels": torch.tensor(labels[rows])}
            torch.save(tensors, temporary / f"{shard:03d}.pt")

    _write_arrays(path, folder, write)


def _write_zip(path: Path, folder: Storage) -> None:
    import zipfile

    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for key, image, _ in _records(folder):
                archive.writestr(zipfile.ZipInfo(key), image)

    write_whole(path, write)


def _write_webdataset(path: Path, folder: Storage) -> None:
    import io
    import tarfile

    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as shard:
            for key, image, label in _mixed(folder):
                stem, _, ending = key.rpartition(".")
                for name, content in (("cls", str(label).encode()), (ending, image)):
                    info = tarfile.TarInfo(f"{stem}.{name}")
                    info.size = len(content)
                    shard.addfile(info, io.BytesIO(content))

    assert folder.index.class_names is not None
    names = "\n".join(folder.index.class_names).encode()
    write_whole(path.parent / "classes.txt", lambda file: file.write(names))
    write_whole(path, write)


FORMS: dict[str, tuple[str, Callable[[Path, Storage], None]]] = {
    "arrow": (".arrow", _write_arrow),
    "csv": (".csv", _write_csv),
    "hdf5": (".h5", _write_hdf5),
    "jsonl": (".jsonl", _write_jsonl),
    "lmdb": ("", _write_lmdb),
    "memmap": ("", _write_memmap),
    "npy_shards": ("", _write_npy_shards),
    "parquet": (".parquet", _write_parquet),
    "sqlite": (".sqlite", _write_sqlite),
    "pt_shards": ("", _write_pt_shards),
    "webdataset": (".tar", _write_webdataset),
    "zip": (".zip", _write_zip),
}
"""Ending of a split's name and how it is written, by the storage that reads it."""

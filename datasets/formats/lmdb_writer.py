"""Writing a storage's records into an LMDB file with the index beside it, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from datasets.formats.lmdb_pages import scan_lmdb
from datasets.formats.packed_fields import pack_fields
from datasets.index import write_index
from datasets.protocols import Storage
from datasets.recoded import Recode, recoded
from datasets.sample import BadRecord

INDEX_NAME = "index.arrow"
# What one transaction writes; it is held in memory until then.
_TRANSACTION_RECORDS = 256
_TRANSACTION_BYTES = 1 << 24
# Columns of an LMDB source that speak of its file.
_PLACES = frozenset(
    "offset crc32 image_bytes text_offset text_bytes metadata_offset metadata_bytes "
    "raw_height raw_width raw_channels".split()
)
_SIZES = frozenset(("height", "width"))  # of images that may have become others
_SHAPE = ("height", "width", "channels")
_FIRST_MAP_BYTES = 1 << 28


def write_lmdb(path: str | Path, source: Storage, *, recode: Recode | None = None) -> None:
    """Write all records of `source` into a new folder with data.mdb and index.arrow.

    Values are stored under the keys ``0000000000``, ``0000000001``, ...; that of a record with
    an image and a label alone is the image file as it was, or the pixels of a decoded image.
    Labels, keys, checksums and the shapes of decoded images (``raw_height``, ``raw_width``,
    ``raw_channels``; 0 for a file) are in the index, with the columns of the source's index.

    Args:
        path: The folder to make; it appears under this name when it is whole.
        source: The records.
        recode: Changes each record before it is written, on all cores.

    Raises:
        ValueError: Something is at `path`, or a record of the source cannot be read.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise ValueError(f"pack: {path} is there already; choose another path or move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        data = folder / "data.mdb"
        columns = _write_values(folder, source, recode)
        entries = list(scan_lmdb(str(data))) if len(source) else []
        assert [entry.size_bytes for entry in entries] == columns["size_bytes"].tolist()
        columns["offset"] = np.array([entry.offset for entry in entries], np.int64)
        index = source.index
        gone = _PLACES if recode is None else _PLACES | _SIZES
        for name in index.columns:
            if name not in gone:
                columns.setdefault(name, index.column(name))
        write_index(
            folder / INDEX_NAME,
            keys=_raw_keys(source),
            columns=columns,
            class_names=index.class_names,
            metadata={"layout": "lmdb", "version": 1, "data_bytes": data.stat().st_size},
        )
        folder.chmod(0o777 & ~_umask())
        _rename_new(folder, path)
    except BaseException:
        shutil.rmtree(folder)  # made above, by this call
        raise


def _rename_new(folder: Path, path: Path) -> None:
    """Give the folder its name, never over another one."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise ValueError(f"pack: {path} was made by someone else meanwhile") from error
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _raw_keys(source: Storage) -> list[bytes]:
    indices = np.arange(len(source))
    index: Any = source.index
    if hasattr(index, "raw_keys"):
        return index.raw_keys(indices)
    return [key.encode() for key in index.keys(indices)]


def _write_values(folder: Path, source: Storage, recode: Recode | None) -> dict[str, Any]:
    """Write the values; sizes, checksums, shapes and labels by column."""
    import lmdb

    n = len(source)
    sizes, images, checksums = (np.zeros(n, np.uint32) for _ in range(3))
    shapes = np.zeros((n, 3), np.uint32)
    labels = np.zeros(n, np.int64)
    labelled = 0
    values: list[tuple[bytes, bytes]] = []
    pending_bytes = 0
    # One writer in a folder of its own: no lock file, and one sync at the end.
    env = lmdb.open(
        str(folder), map_size=_FIRST_MAP_BYTES, lock=False, sync=False, metasync=False, max_dbs=0
    )
    try:
        with closing(recoded(source, recode)) as records:
            for record in records:
                if isinstance(record, BadRecord):
                    raise ValueError(
                        f"pack: {source}: {record.key!r} {record.cause}; repair or remove it"
                    )
                i = record.index
                value, images[i] = pack_fields(record.fields, key=record.key)
                sizes[i], checksums[i] = len(value), zlib.crc32(value)
                if isinstance(record.fields.get("image"), np.ndarray):
                    shapes[i] = record.fields["image"].shape
                if "label" in record.fields:
                    labels[i] = record.fields["label"]
                    labelled += 1
                values.append((f"{i:010d}".encode(), value))
                pending_bytes += len(value)
                if len(values) >= _TRANSACTION_RECORDS or pending_bytes >= _TRANSACTION_BYTES:
                    _put(env, values)
                    values, pending_bytes = [], 0
        _put(env, values)
        env.sync(True)
    finally:
        env.close()
    columns = {"size_bytes": sizes, "crc32": checksums}
    if labelled not in (0, n):
        raise ValueError(f"pack: {source}: {labelled} of {n} records have a label; all or none")
    if labelled:
        narrow = labels.size and -(1 << 31) <= labels.min() and labels.max() < 1 << 31
        columns["label"] = labels.astype(np.int32) if narrow else labels  # type: ignore[assignment]
    if (images != sizes).any():
        columns["image_bytes"] = images
    if shapes.any():
        columns |= {f"raw_{name}": shapes[:, k] for k, name in enumerate(_SHAPE)}
    return columns


def _put(env: Any, values: list[tuple[bytes, bytes]]) -> None:
    """Write some values in one transaction, in a larger map if they do not fit."""
    import lmdb

    while True:
        try:
            with env.begin(write=True) as transaction:
                for key, value in values:
                    transaction.put(key, value, append=True)
            return
        except lmdb.MapFullError:
            env.set_mapsize(env.info()["map_size"] * 2)

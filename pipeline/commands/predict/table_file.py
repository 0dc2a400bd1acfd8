"""A table of predictions as a file: whole, or not there."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KINDS = (".parquet", ".csv")


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot or may not be written, before anything is computed.

    Raises:
        ValueError: It is of another kind, or there is one and `overwrite` is off.
    """
    if path.suffix.lower() not in _KINDS:
        raise ValueError(
            f"predict.output is {str(path)!r}, expected a file name that ends in .parquet or .csv"
        )
    if path.is_dir():
        raise ValueError(f"predict.output: {path} is a folder; name a file")
    if os.path.lexists(path) and not overwrite:
        raise ValueError(
            f"predict.output: {path} exists; choose another path, or set predict.overwrite=true"
        )
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"predict.output: {folder} is no folder that can be written to")


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length.

    Args:
        path: Ends in ``.parquet`` or ``.csv``; its folder is made.
        columns: Numbers, texts, bytes, and lists of these; NumPy arrays [N] or [N, n].

    Raises:
        ValueError: It cannot be written.
    """
    content = _parquet(columns) if path.suffix.lower() == ".parquet" else _csv(columns)
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        name = None
    except OSError as error:
        raise ValueError(
            f"predict.output: {path} cannot be written: {error.strerror}; choose another path"
        ) from error
    finally:
        if name is not None:
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _parquet(columns: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.array(_rows(values)) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _rows(values: Any) -> Any:
    """Values as pyarrow takes them: of an array with several axes a list of its rows."""
    return list(values) if getattr(values, "ndim", 1) > 1 else values


def _csv(columns: Mapping[str, Any]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    plain = [
        values.tolist() if hasattr(values, "tolist") else values for values in columns.values()
    ]
    for row in zip(*plain, strict=True):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return value

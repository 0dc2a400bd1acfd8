"""Find the data sets of an HDF5 file whose rows are samples."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import RecordError
from penstock.datasets.records.labels import images_fault
from penstock.datasets.records.split_names import is_split_word
from penstock.datasets.records.table import Table, numbered
from penstock.datasets.storages.hdf5.file import File, follow
from penstock.datasets.storages.hdf5.rows import RowReader

CLASS_NAMES = ("class_names", "classes", "label_names")
KEY_NAMES = ("keys", "key")
RESERVED = ("index", "key", "position", "epoch", "valid")
FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MARK = "penstock"
"""Attribute of packed files, and of their data sets of `bytes` or `packed` values."""

_FIELD_NAMES = {"images": "image", "labels": "label", "masks": "mask"}
_REMEDY = "name the data sets to read: dataset.storage.fields={image:images}"
_TIMEOUT_S = 60
_READ_ATTRIBUTE = """
import json, sys, h5py, numpy
with h5py.File(sys.argv[1]) as file:
    found = numpy.asarray(file[sys.argv[2]].attrs[sys.argv[3]])
is_text = found.ndim == 1 and found.dtype.kind in "OS"
texts = [t if isinstance(t, str) else t.decode() for t in found.tolist()] if is_text else None
print(json.dumps(texts))
"""


class Samples:
    """The data sets of a file.

    Attributes:
        fields: Readers by field, the image first.
        keys: Reader of the keys, or None for row numbers.

    Args:
        group: The path of the group that contains the data.
        paths: Paths of data sets by field; None: all.

    Raises:
        RecordError: The data sets are unreadable, or do not fit together.
    """

    def __init__(self, file: File, group: str, paths: Mapping[str, str] | None) -> None:
        self.file = file
        self._top: Any = follow(file.h5["/"], group)
        self._is_packed = _mark(file.h5) != ""
        readers = self._readers(group, paths)
        self.keys = next((readers[name] for name in KEY_NAMES if name in readers), None)
        names = (readers[name] for name in CLASS_NAMES if name in readers)
        self._names = next((reader for reader in names if reader.is_text), None)
        if paths is None:
            beside = (self.keys, self._names)
            rest = [path for path, reader in readers.items() if reader not in beside]
            paths = {
                path if self._is_packed else _FIELD_NAMES.get(path, path): path for path in rest
            }
            if len(paths) < len(rest):
                raise RecordError(f"two data sets would be one field, among {rest}; {_REMEDY}")
        in_order = sorted(paths, key=lambda name: (name != "image", name))
        self.fields = {name: readers[paths[name]] for name in in_order}
        counts = {name: reader.count for name, reader in self.fields.items()}
        if self.keys is not None:
            counts["keys"] = self.keys.count
        self.count = next(iter(counts.values()), 0)
        if set(counts.values()) != {self.count}:
            raise RecordError(f"expected fields with equally many rows, got {counts}; {_REMEDY}")
        for name, reader in self.fields.items():
            _check_field(name, reader)

    @property
    def needed(self) -> list[str]:
        """Return the names that all files of a storage must have; packed files may lack fields."""
        names = ["keys"] if self.keys is not None else []
        for name, reader in self.fields.items():
            if name == "label" or not self._is_packed:
                names.append(f"{name} (text)" if reader.is_text else name)
        return names

    def table(self) -> Table:
        """Index the rows; `kinds` are type and shape of the rows of each array."""
        kinds = {
            name: [reader.native.str, list(reader.shape[1:])] if reader.is_array else None
            for name, reader in self.fields.items()
            if name != "label"
        }
        sizes = np.zeros(self.count, np.int64)
        for reader in self.fields.values():
            sizes += reader.sizes()
        columns: dict[str, NDArray[Any]] = {"size_bytes": sizes}
        if (image := kinds.get("image")) is not None:
            sides = (np.full(self.count, side, np.int32) for side in image[1][:2])
            columns |= dict(zip(("height", "width"), sides, strict=True))
        classes: tuple[str, ...] | None = None
        declared = False
        if (labels := self._labels()) is not None:
            names = self.class_names()
            if labels.dtype == object:
                texts = sorted(set(labels.tolist()))
                columns["label"] = np.searchsorted(np.array(texts, object), labels)
                classes = tuple(texts)
            else:
                columns["label"] = labels.astype(np.int64)
                classes, declared = tuple(names) if names else None, bool(names)
        keys: Any = numbered(self.count) if self.keys is None else self._raw_keys()
        about = {"keyed": self.keys is not None, "declares_classes": declared}
        return Table(keys, columns, classes, {"needed": self.needed, "kinds": kinds, **about})

    def _raw_keys(self) -> list[bytes]:
        assert self.keys is not None
        if not self.keys.is_text and not self.keys.is_ids:
            raise RecordError("its keys are neither text nor whole numbers; rename the data set")
        return [v.rstrip(b"\0") if self.keys.is_text else b"%d" % v for v in self.keys.whole()]

    def _labels(self) -> NDArray[Any] | None:
        """Return the names or class ids of the records, or None."""
        reader = self.fields.get("label")
        if reader is None or reader.is_text:
            return None if reader is None else np.array(reader.whole(), object)
        if not reader.is_ids:
            raise RecordError(
                f"label is {reader.dtype} {list(reader.shape)}, expected class ids from 0 on [N], "
                f"or names; rename it: dataset.storage.fields={{target:labels}}"
            )
        labels = np.empty(self.count, reader.native)
        reader.gather(np.arange(self.count), np.arange(self.count), labels)
        return labels

    def class_names(self) -> list[str] | None:
        """Read class names from a data set, or from an attribute of labels, group or file."""
        if self._names is not None:
            return self._names.whole()
        labels = [self.fields["label"].dataset] if "label" in self.fields else []
        for place, name in itertools.product([*labels, self._top, self.file.h5["/"]], CLASS_NAMES):
            if name in place.attrs and (names := _read_attribute(self.file.path, place.name, name)):
                return names
        return None

    def _readers(self, group: str, paths: Mapping[str, str] | None) -> dict[str, RowReader]:
        """Open the data sets of fields, keys and class names."""
        import h5py

        if not isinstance(self._top, h5py.Group):
            raise RecordError(f"{group!r} is a data set, expected a group of data sets")
        names = [*KEY_NAMES, *CLASS_NAMES] if paths is not None else self._top
        found = {name: follow(self._top, name) for name in names if name in self._top}
        found = {n: each for n, each in found.items() if isinstance(each, h5py.Dataset)}
        found |= {path: follow(self._top, path) for path in (paths or {}).values()}
        if not found:
            raise RecordError(
                _no_data_sets(self.file.path, group, [*itertools.islice(self._top, 4)])
            )
        return {
            path: RowReader(self.file, each, path, "bytes" if path in KEY_NAMES else _mark(each))
            for path, each in found.items()
        }


def _check_field(name: str, reader: RowReader) -> None:
    """Raise `RecordError` for a data set that cannot be this field."""
    if name in RESERVED or not FIELD.fullmatch(name):
        raise RecordError(
            f"{reader.path} would be a field {name!r}, expected a name of letters, digits and _ "
            f"that is none of {', '.join(RESERVED)}; {_REMEDY}"
        )
    if not reader.shape or (len(reader.shape) > 1 and not reader.is_array):
        raise RecordError(f"{name} has the shape {list(reader.shape)}, expected [N]; {_REMEDY}")
    if name in ("image", "mask") and reader.varies and reader.dtype == np.uint8:
        reader.holds = reader.holds or "bytes"
    if name == "image" and reader.is_array:
        remedy = "or rename the field: dataset.storage.fields={array:images}"
        if fault := images_fault(reader.shape, reader.native.str, remedy=remedy):
            raise RecordError(fault)


def _mark(parent: Any) -> str:
    """Return the mark that packing left on a file or data set, or an empty text."""
    if MARK not in parent.attrs:
        return ""
    if parent.attrs.get_id(MARK).dtype.kind != "S":
        raise RecordError("packed by an earlier version of penstock; pack it again")
    return str(parent.attrs[MARK].decode("utf-8", "replace"))


def _no_data_sets(file: str, group: str, names: list[str]) -> str:
    """Explain that a group has only groups, and what to type."""
    path = f"{file}/{group}".rstrip("/")
    if names and all(map(is_split_word, names)):
        part = "train" if "train" in names else names[0]
        return f"its groups are {names}; name one: dataset.storage.path={path}/{part}"
    return (
        f"no data sets in /{group}, but groups {names}; expected data sets of samples in rows. "
        f"For a group per sample, copy groups.py from docs/moving.md, and type "
        f"'imports=[groups.py]' dataset=torch dataset.target=groups.Groups "
        f"'dataset.args={{path: {file}}}'"
    )


def _read_attribute(*place: str) -> list[str] | None:
    """Read an attribute in another process, because a damaged one hangs the library."""
    command = [sys.executable, "-P", "-c", _READ_ATTRIBUTE, *place]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RecordError(f"damaged: the library hangs in the attribute {place[2]!r}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines() or [str(done.returncode)]
        raise RecordError(f"damaged: the attribute {place[2]!r} cannot be read ({lines[-1]})")
    names: list[str] | None = json.loads(done.stdout)
    return names

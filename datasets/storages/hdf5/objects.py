"""Opens HDF5 files and looks up what they hold: links, datasets, types, filters, attributes.

Nothing outside the file is read: no link to another file, no external or virtual storage.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import EndOfFile, MissingFile

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
"""Of files in a folder, and of those that a group may be named behind."""
CLASS_NAMES = ("class_names", "classes", "label_names")
KEY_NAMES = ("keys", "key")
SHAPE_ENDING, MISSING_ENDING = ".shape", ".missing"
BESIDE_ENDINGS = (SHAPE_ENDING, MISSING_ENDING)
FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that a field may have."""
PACKED = "penstock"  # the attribute in which a packer says more

_H5PY_VERSION = (3, 16)  # the first whose HDF5, 2.0, survives damaged files
_ERRNO = re.compile(r"errno = (\d+)")
_REASON = re.compile(r"\((.*)\)")


class Refused(Exception):
    """The file holds what is not read; the message says what and why."""


class Damaged(Exception):
    """The data is not what was written; the message is the cause."""


DAMAGE = (Damaged, Refused, EndOfFile, MissingFile)
"""Raised by reading where the data is not what was written."""


@dataclass(frozen=True, slots=True)
class Array:
    """A dataset, as its header describes it.

    Attributes:
        kind: ``number``, ``text`` or ``bytes`` (of a fixed length), ``list`` or ``long_text``
            (of any length).
        dtype: NumPy's type of an element, or of the items of a list, as it is in the file.
        shape: Its shape, with the axes that elements have of their own.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_listed(self) -> bool:
        """Whether elements have any length."""
        return self.kind in ("list", "long_text")

    @property
    def is_text(self) -> bool:
        """Whether elements are texts."""
        return self.kind in ("text", "long_text")

    @property
    def native(self) -> np.dtype[Any]:
        """Type of an element in the machine's order of bytes."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def row_bytes(self) -> int:
        """Size of a row of elements of fixed length."""
        return math.prod(self.shape[1:]) * self.native.itemsize


def need_h5py() -> None:
    """Raise `Refused` where h5py is missing or too old."""
    try:
        import h5py
    except ImportError:
        raise Refused(
            "the package h5py is missing (the extra hdf5); run: pip install 'h5py>=3.16'"
        ) from None
    if h5py.version.version_tuple[:2] < _H5PY_VERSION:
        raise Refused(f"h5py {h5py.__version__} is too old; run: pip install 'h5py>=3.16'")


def open_file(path: str) -> Any:
    """Open a file as ``h5py.File``.

    Raises:
        Refused: h5py is missing.
        OSError: It cannot be opened.
    """
    need_h5py()
    import h5py

    return h5py.File(path, "r")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise whatever the library raises in a damaged file as `Damaged`, disk trouble as OSError."""
    try:
        yield
    except DAMAGE:
        raise
    except Exception as error:  # of any kind: the library's own
        text = " ".join(str(error).split())
        code = _ERRNO.search(text)
        if code is not None:
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        if is_trouble(error) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise Damaged(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Take the cause out of what the library says."""
    text = " ".join(str(error).split())
    found = _REASON.search(text)
    return found[1] if found else text or type(error).__name__


@contextlib.contextmanager
def in_one_line(where: str) -> Iterator[None]:
    """Raise whatever is wrong with a file as a ValueError of one line."""
    try:
        with explained():
            yield
    except Refused as error:
        raise ValueError(f"{where}: {shown_text(str(error))}") from None
    except (Damaged, EndOfFile, MissingFile, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            text = "it is being written (locked); close it there"
        elif "already open for write" in str(error):
            text = "it is being written, or was not closed; close it there, or: h5clear -s"
        else:
            text = f"damaged or no HDF5 file ({shown_text(str(error))}); copy it again"
        raise ValueError(f"{where}: {text}") from None


def shown_text(text: str) -> str:
    """Escape a text with names in it that may be no UTF-8, so that it can be printed."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def follow(group: Any, path: str, *, shown: str = "") -> Any:
    """Open the object at a path below an ``h5py.Group``; messages call it `shown`.

    Raises:
        Refused: There is none, or a link on the way leads out of the file.
    """
    import h5py

    if not path:
        return group
    shown = shown or path
    try:
        found = group[path]
    except (KeyError, RuntimeError, ValueError) as error:
        names = ", ".join(shown_text(name) for name in itertools.islice(group, 8))
        raise Refused(
            f"{shown!r} cannot be opened ({_reason(error)}); there are: {names or 'none'}"
        ) from None
    if h5py.h5o.get_info(found.id).fileno != h5py.h5o.get_info(group.id).fileno:
        raise Refused(
            f"{shown!r} is an external link, which leads out of the file; copy the data into it"
        )
    return found


def is_group(found: Any) -> bool:
    """Whether an object is a group."""
    import h5py

    return isinstance(found, h5py.Group)


def members(group: Any, *, shown: str = "") -> Iterator[tuple[str, Any]]:
    """Open the objects in a group; `shown` is its name for messages.

    Raises:
        Refused: A link leads out of the file or nowhere.
    """
    start = f"{shown}/" if shown else ""
    return ((name, follow(group, name, shown=f"{start}{name}")) for name in group)


def describe(dataset: Any, shown: str) -> Array:
    """Describe a dataset by its header.

    Raises:
        Refused: It cannot be read.
    """
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise Refused(f"{shown!r} is a group, expected a dataset")
    if dataset.is_virtual or dataset.external:
        kind = "virtual: parts of other files" if dataset.is_virtual else "external"
        raise Refused(f"the data of {shown!r} lies outside the file ({kind}); copy it into one")
    if dataset.shape is None:
        raise Refused(f"{shown!r} is empty: it has a type and no value; leave it out")
    plist = dataset.id.get_create_plist()
    for number in range(plist.get_nfilters()):
        code, _, _, name = plist.get_filter(number)
        _need_filter(code, name, shown)
    try:
        dtype = dataset.id.dtype
    except TypeError as error:
        raise Refused(f"{shown!r} holds elements that NumPy has no type for ({error})") from None
    dtype, axes = dtype.subdtype or (dtype, ())
    items = h5py.check_vlen_dtype(dtype)
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        kind, dtype = ("text", dtype) if text.length else ("long_text", np.dtype(np.uint8))
    elif items is not None:
        kind, dtype = "list", items
    else:
        kind = "bytes" if dtype.kind == "V" and dtype.names is None else "number"
    allowed = {"number": "biufc", "list": "biufc", "bytes": "V"}.get(kind, "Su")
    if not isinstance(dtype, np.dtype) or dtype.kind not in allowed or dtype.subdtype is not None:
        raise Refused(
            f"{shown!r} holds elements of the type {items or dtype}, expected numbers, text or "
            f"bytes; write it as such, or name the datasets to read in dataset.storage.fields"
        )
    return Array(kind, dtype.str, (*dataset.shape, *axes))


def refuse_unwritten(dataset: Any, shown: str, *, file_bytes: int) -> None:
    """Raise `Refused` where parts of a dataset were never written, and nothing fills them."""
    import h5py

    plist = dataset.id.get_create_plist()
    if plist.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED:
        return
    if dataset.chunks is not None:
        lengths = zip(dataset.shape, dataset.chunks, strict=True)
        count = math.prod(-(-length // chunk) for length, chunk in lengths)
        missing = count - dataset.id.get_num_chunks()
        if missing > 0:
            raise Refused(
                f"{missing:,} of {count:,} chunks of {shown!r} were never written; write them, or "
                f"make the dataset as long as its data"
            )
    elif plist.get_layout() == h5py.h5d.CONTIGUOUS and dataset.size:
        offset = dataset.id.get_offset()
        if offset is None:
            raise Refused(f"{shown!r} was never written; write it anew")
        if offset + dataset.id.get_storage_size() > file_bytes:
            raise Refused(f"{shown!r} lies outside the file, which is cut short or damaged")


def _need_filter(code: int, name: bytes, shown: str) -> None:
    """Load the plugin of a filter that is not built in."""
    import h5py

    with contextlib.suppress(ImportError):
        if not h5py.h5z.filter_avail(code):
            import hdf5plugin  # noqa: F401 - it registers its filters
    if not h5py.h5z.filter_avail(code):
        raise Refused(
            f"{shown!r} was compressed by the filter {name.decode('utf-8', 'replace')!r} ({code}), "
            f"which is not there; run: pip install hdf5plugin (the extra hdf5plugin), or write it "
            f"anew with gzip: h5repack -f GZIP=4"
        )


def class_names(parent: Any) -> list[str] | None:
    """Read the class names in an attribute of an object, if it has such."""
    for name in CLASS_NAMES:
        values = np.asarray(parent.attrs.get(name))
        if values.ndim == 1 and values.dtype.kind in "OSU":
            texts = [_text(value) for value in values.tolist()]
            if None not in texts:
                return texts  # type: ignore[return-value]
    return None


def text_attribute(parent: Any, name: str) -> str | None:
    """Read an attribute that is a text."""
    return _text(parent.attrs.get(name))


def label_attribute(group: Any) -> int | str | None:
    """Read the attribute ``label`` of a sample's group."""
    value = group.attrs.get("label")
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, np.integer):
        return int(value)
    return _text(value)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value) if isinstance(value, str) else None

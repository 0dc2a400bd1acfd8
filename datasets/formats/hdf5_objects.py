"""What the HDF5 library says of one object: links, types and attributes. For `hdf5_scan` alone."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASS_NAMES = ("class_names", "classes", "label_names")
KEY_NAMES = ("keys", "key")
SHAPE_ENDING, MISSING_ENDING = ".shape", ".missing"
BESIDE_ENDINGS = (SHAPE_ENDING, MISSING_ENDING)
PACKED = "penstock"  # the attribute in which a packer says more
_MOST_ATTRIBUTE_BYTES = 1 << 24


class Refused(Exception):
    """The file holds what is not read; the message says what and why."""


def follow(group: Any, path: str) -> Any:
    """The object at a path below a group, by hard links alone.

    Raises:
        Refused: There is none, or a link on the way leads elsewhere.
    """
    import h5py

    at = group
    for name in filter(None, path.split("/")):
        raw = name.encode()
        if not isinstance(at, h5py.h5g.GroupID) or not at.links.exists(raw):
            raise Refused(f"nothing is called {path!r} there{_there(group)}")
        kind = at.links.get_info(raw).type
        if kind != h5py.h5l.TYPE_HARD:
            external = kind == h5py.h5l.TYPE_EXTERNAL
            raise Refused(link_text(path, "external link" if external else "soft link"))
        at = h5py.h5o.open(at, raw)
    return at


def exists(group: Any, path: str) -> bool:
    """Whether a path can be followed."""
    try:
        follow(group, path)
    except Refused as error:
        if "nothing is called" in str(error):
            return False
        raise
    return True


def link_text(name: str, kind: str) -> str:
    """Why a link is not followed."""
    if "external" in kind:
        return f"{name!r} is an external link, which leads out of the file; copy the data into it"
    return f"{name!r} is a soft link; name what it leads to in dataset.storage.fields"


def value_type(kind: Any, shown: str) -> dict[str, Any]:
    """What the elements of a dataset are.

    Returns:
        ``kind``: number, text, bytes, or a list or text whose values lie elsewhere in the file;
        ``dtype``: of an element, or of the items of a list; ``shape``: of an element.

    Raises:
        Refused: It is none that can be read.
    """
    import h5py

    h5t = h5py.h5t
    if isinstance(kind, h5t.TypeStringID):
        if kind.is_variable_str():
            return {"kind": "long_text", "dtype": "|u1", "shape": []}
        return {"kind": "text", "dtype": f"|S{kind.get_size()}", "shape": []}
    if isinstance(kind, h5t.TypeVlenID):
        items = value_type(kind.get_super(), shown)
        if items["kind"] != "number" or items["shape"]:
            raise Refused(f"{shown!r} holds lists of other things than numbers; leave it out")
        return {"kind": "list", "dtype": items["dtype"], "shape": []}
    if isinstance(kind, h5t.TypeArrayID):
        items = value_type(kind.get_super(), shown)
        if items["kind"] != "number":
            raise Refused(f"{shown!r} holds arrays of other things than numbers; leave it out")
        return {**items, "shape": [*kind.get_array_dims(), *items["shape"]]}
    if isinstance(kind, h5t.TypeOpaqueID) and not kind.get_tag().startswith(b"NUMPY:"):
        return {"kind": "bytes", "dtype": f"|V{kind.get_size()}", "shape": []}
    dtype = _number(kind)
    if dtype is None:
        what = type(kind).__name__.removeprefix("Type").removesuffix("ID").lower()
        raise Refused(
            f"{shown!r} holds elements of the type {what}, expected numbers, text or bytes; write "
            f"it as such, or name the datasets to read in dataset.storage.fields"
        )
    return {"kind": "number", "dtype": dtype.str, "shape": []}


def _number(kind: Any) -> np.dtype[Any] | None:
    """The type of NumPy that has the same bytes, if there is one."""
    import h5py

    h5t = h5py.h5t
    if isinstance(kind, h5t.TypeEnumID):
        if kind.dtype == np.bool_ and kind.get_size() == 1:
            return np.dtype(np.bool_)
        kind = kind.get_super()
    if isinstance(kind, h5t.TypeCompoundID) and kind.dtype.kind != "c":
        return None
    if not isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID, h5t.TypeCompoundID)):
        return None
    dtype = np.dtype(kind.dtype)
    if dtype.kind not in "iufc" or dtype.itemsize > 16 or dtype in (np.longdouble, np.clongdouble):
        return None
    return dtype if h5t.py_create(dtype).equal(kind) else None


def class_names(parent: Any) -> list[str] | None:
    """The class names in an attribute of an object, if it has such."""
    for name in CLASS_NAMES:
        values = _attribute(parent, name.encode())
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "OSU":
            texts = [_text(value) for value in values.tolist()]
            if all(text is not None for text in texts):
                return texts  # type: ignore[return-value]
    return None


def text_attribute(parent: Any, name: str) -> str | None:
    """An attribute that is a text."""
    return _text(_attribute(parent, name.encode()))


def label_attribute(group: Any) -> int | str | None:
    """The attribute ``label`` of a sample's group."""
    value = _attribute(group, b"label")
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    return _text(value)


def _attribute(parent: Any, name: bytes) -> Any:
    import h5py

    if not h5py.h5a.exists(parent, name):
        return None
    attribute = h5py.h5a.open(parent, name)
    kind = attribute.get_type()
    if not isinstance(kind, (h5py.h5t.TypeStringID, h5py.h5t.TypeIntegerID)):
        return None
    if attribute.get_storage_size() > _MOST_ATTRIBUTE_BYTES:
        raise Refused(f"attribute {name.decode()!r} says that it is larger than 16 MiB")
    owner = h5py.Group(parent) if isinstance(parent, h5py.h5g.GroupID) else h5py.Dataset(parent)
    return owner.attrs[name.decode()]


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value) if isinstance(value, str) else None


def _there(group: Any) -> str:
    """The first names in a group, for messages."""
    names: list[str] = []

    def see(name: bytes) -> bool | None:
        names.append(name.decode("utf-8", "backslashreplace"))
        return True if len(names) == 8 else None

    group.links.iterate(see)
    return f"; there are: {', '.join(names)}" if names else "; the group is empty"

"""Finds out what HDF5 files hold: arrays with a sample per row, or a group per sample; their index.

What is wrong in a file is raised as `Refused`, to which the caller adds the storage and the file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.json_text import parse_json
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.labels import column_ids, images_fault, refuse_twice
from penstock.datasets.records.split_names import SPLIT_OF, is_split_word
from penstock.datasets.storages.hdf5.arrays import (
    ArrayReader,
    OpenFile,
    OpenFiles,
    native,
    text_of,
)
from penstock.datasets.storages.hdf5.objects import (
    BESIDE_ENDINGS,
    CLASS_NAMES,
    FIELD,
    KEY_NAMES,
    PACKED,
    Array,
    Damaged,
    Refused,
    class_names,
    follow,
    in_one_line,
    is_group,
    label_attribute,
    members,
    text_attribute,
)

_FIELD_NAMES = {"images": "image", "labels": "label", "masks": "mask"}
_RESERVED = ("index", "key", "position", "epoch", "valid")
_FIELDS_REMEDY = "dataset.storage.fields={image:images}"


@dataclass(frozen=True, slots=True)
class Column:
    """A field of the rows of one file.

    Attributes:
        path: Its dataset, below the group of the data.
        array: What that is.
        holds: What a list of bytes is: ``array``, ``bytes``, ``text``, ``json``, or ``any`` (see
            `core.record_codec`).
        shapes: The dataset with the shape of every value, integer [N, axes]; None: one axis.
        missing: The dataset that says whether a row lacks the field, bool [N]; None: none does.
    """

    path: str
    array: Array
    holds: str
    shapes: str | None = None
    missing: str | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Column:
        """Make a column of the dict that was kept as JSON."""
        array = values["array"]
        return cls(**{**values, "array": Array(**{**array, "shape": tuple(array["shape"])})})


class Place(NamedTuple):
    """Place of a field of a group.

    Attributes:
        path: Its dataset, below the group.
        array: What that is.
        offset: Where in the file its numbers lie as they are; -1: the library reads it.
    """

    path: str
    array: Array
    offset: int


@dataclass(slots=True)
class Found:
    """Content of a file, but for the values of its samples.

    Attributes:
        rows: Its records are rows of arrays; else groups.
        is_packed: It was packed here: files may lack fields.
        class_names: Names of the classes, where it says them.
        keys: Names of its records as they are in the file; None: row numbers.
        labels: Their labels, integers [n] or names; None without labels.
        sizes: Bytes of each record.
        image_sizes: Height and width of each record, or of none.
        columns: Of rows: the columns by field.
        places: Of groups: where the fields of each lie, but for labels.
    """

    rows: bool
    is_packed: bool = False
    class_names: Sequence[str] | None = None
    keys: list[bytes] | None = None
    labels: list[Any] | NDArray[Any] | None = None
    sizes: list[int] | NDArray[np.int64] = field(default_factory=list)
    image_sizes: list[tuple[int, int]] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)
    places: list[dict[str, Place]] = field(default_factory=list)


def scan_files(
    files: DataFiles,
    group: str,
    *,
    fields: Mapping[str, str] | None,
    class_names: Sequence[str] | None,
    classes: Sequence[str] | None,
    max_bytes: int,
    where: str,
) -> IndexContent:
    """Look into all files, one open at a time, and index their records.

    Args:
        files: The files.
        group: The group in each that holds the data.
        fields: Paths of datasets by field; None: all there are.
        class_names: Names of the classes, where no file says them.
        classes: Class names by id that are given.
        max_bytes: What a record may take.
        where: The storage, for messages.

    Raises:
        ValueError: A file is damaged or holds what is not read, or they do not fit together.
    """
    found = []
    for number, name in enumerate(files.names):
        with in_one_line(f"{where}: {name}" if len(files.names) > 1 else where):
            file = OpenFiles(files, group, 0, max_bytes)[number]
            try:
                found.append(_look_into(file, group, fields))
            finally:
                file.close()
    first = found[0]
    _refuse_different(found, files.names, where)
    counts = [len(each.sizes) for each in found]
    count = sum(counts)
    if not count:
        raise ValueError(f"{where}: the datasets have no rows, expected one per sample")
    named: Any = {"key_pattern": "{}", "count": count}
    if first.keys is not None:
        named = {"keys": [key for each in found for key in each.keys or ()]}
        _check_keys(named["keys"], first, where=where)
    places = [sample for each in found for sample in each.places]
    names = {name for sample in places for name in sample}
    if not names and not first.rows:
        raise ValueError(f"{where}: no dataset in the groups of its samples")
    columns: dict[str, NDArray[Any]] = {
        "size_bytes": np.concatenate([np.asarray(each.sizes, np.int64) for each in found])
    }
    types: dict[tuple[str, str], int] = {}
    if not first.rows:
        columns["file"] = np.repeat(np.arange(len(found), dtype=np.int32), counts)
        for name in sorted(names, key=_image_first):
            columns |= _place_columns(name, [sample.get(name) for sample in places], types)
    label_names = None
    if any(each.labels is not None for each in found):
        said = next((each.class_names for each in found if each.class_names), class_names)
        labels = _joined_labels(found, where)
        columns["label"], label_names = column_ids(
            labels, names=said, classes=classes, where=f"{where}: label"
        )
    sizes = [size for each in found for size in each.image_sizes]
    if len(sizes) == count:
        columns["height"], columns["width"] = np.array(sizes, np.int32).T.copy()
    about = [[n, c.array.dtype, c.array.shape[1:]] for n, c in first.columns.items()]
    kept = [{n: asdict(c) for n, c in each.columns.items()} for each in found]
    return {
        **named,
        "columns": columns,
        "class_names": label_names,
        "content": repr(about or sorted(names)),
        "metadata": {
            "counts": counts,
            "columns": kept if first.rows else None,
            "types": list(types),
        },
    }


def _image_first(name: str) -> tuple[bool, str]:
    return name != "image", name


def _place_columns(
    name: str, places: Sequence[Place | None], types: dict[tuple[str, str], int]
) -> dict[str, NDArray[Any]]:
    """Make the index's columns of a field of groups; see `SampleTable`."""
    axes = max(len(place.array.shape) for place in places if place is not None)
    columns = {
        f"{name}:{what}": np.full(len(places), empty, np.int64)
        for what, empty in (("type", -1), ("offset", -1), ("axes", 0))
    }
    lengths = np.zeros((axes, len(places)), np.int64)
    for row, place in enumerate(places):
        if place is not None:
            shape = place.array.shape
            number = types.setdefault((place.path, place.array.dtype), len(types))
            columns[f"{name}:type"][row] = number
            columns[f"{name}:offset"][row] = place.offset
            columns[f"{name}:axes"][row] = len(shape)
            lengths[: len(shape), row] = shape
    return columns | {f"{name}:length{axis}": lengths[axis] for axis in range(axes)}


def _check_keys(keys: list[bytes], first: Found, *, where: str) -> None:
    shown = [key.decode(errors="backslashreplace") for key in keys[: len(SPLIT_OF) + 1]]
    if not first.rows and all(map(is_split_word, shown)):
        raise ValueError(
            f"{where}: its groups are {' and '.join(shown)}, which are parts and no samples; "
            f"name one: dataset.storage.path=data.h5/{shown[0]}"
        )
    refuse_twice(keys, where=where, remedy="write them anew, each with a key of its own")


def _look_into(file: OpenFile, group: str, fields: Mapping[str, str] | None) -> Found:
    """Look at everything in a file but the values of its samples.

    Args:
        file: The file.
        group: The group of the data, for messages.
        fields: Paths of datasets by field; None: all there are.

    Raises:
        Refused: It holds what is not read, or what does not fit together.
    """
    if not is_group(file.top):
        raise Refused(f"{group!r} is a dataset, expected a group that holds datasets")
    inside = [(name, is_group(found)) for name, found in members(file.top)]
    datasets = [name for name, holds in inside if not holds]
    if fields is not None and next(iter(fields.values())) in file.top:
        paths = list(fields.values())
        beside = [name for name in datasets if _is_beside(name, paths)]
        return _rows(file, [*paths, *beside], fields)
    if fields is None and datasets:
        return _rows(file, datasets, None)
    if inside and not datasets:
        return _groups(file, [name for name, _ in inside], fields)
    shown = ", ".join(name for name, _ in inside[:8]) or "nothing"
    raise Refused(
        f"no dataset found in {'/' + group!r}, but {shown}; expected one for each field, or a "
        f"group for each sample; name the group in dataset.storage.path: data.h5/group"
    )


def _rows(file: OpenFile, paths: Sequence[str], fields: Mapping[str, str] | None) -> Found:
    """Look into a file whose records are the rows of some datasets."""
    readers = {path: file.reader(path) for path in dict.fromkeys(paths)}
    for reader in readers.values():
        reader.refuse_unwritten()
    is_packed = text_attribute(file.file, PACKED) is not None
    if fields is None:
        many = {} if is_packed else _FIELD_NAMES
        rows = [path for path in readers if not _is_beside(path, readers, readers)]
        fields = {many.get(path, path): path for path in rows}
        if len(fields) < len(rows):
            raise Refused(
                f"two datasets would be one field, among {', '.join(readers)}; name those to read: "
                f"{_FIELDS_REMEDY}"
            )
    columns = {}
    for name in sorted(fields, key=_image_first):
        path = fields[name]
        _check_name(name, path)
        array = readers[path].array
        shapes, missing = (
            f"{path}{end}" if f"{path}{end}" in readers else None for end in BESIDE_ENDINGS
        )
        holds = _packed(readers[path]).get("holds") or _holds_of(name, array)
        columns[name] = Column(path, array, holds, shapes, missing)
    if not columns and not is_packed:
        raise Refused(f"no dataset in there is a field, among {', '.join(readers)}")
    if not is_packed:
        _check_rows(columns, readers)
    count = next((column.array.shape[0] for column in columns.values()), None)
    keys = _keys(readers, count)
    count = count if count is not None else len(keys or ())
    sizes = np.zeros(count, np.int64)
    for column in columns.values():
        is_listed = column.array.is_listed
        sizes += readers[column.path].lengths() if is_listed else column.array.row_bytes
    found = Found(True, is_packed, keys=keys, columns=columns, sizes=sizes)
    found.class_names = _class_names(file, readers)
    if "label" in columns:
        found.labels = _row_labels(readers[columns["label"].path])
    if "image" in columns and len(columns["image"].array.shape) == 4:
        found.image_sizes = [columns["image"].array.shape[1:3]] * count
    return found


def _groups(file: OpenFile, names: Sequence[str], fields: Mapping[str, str] | None) -> Found:
    """Look into a file whose records are groups."""
    found = Found(False, keys=[name.encode("utf-8", "surrogateescape") for name in names])
    found.class_names = class_names(file.top) or class_names(file.file)
    sizes, labels = list[int](), list[Any]()
    for name in names:
        group = follow(file.top, name)
        label = label_attribute(group)
        size_bytes = 0
        sample: dict[str, Place] = {}
        for field_name, (path, dataset) in _sample_datasets(group, fields, shown=name).items():
            reader = ArrayReader(file, dataset, f"{name}/{path}")
            reader.refuse_unwritten()
            array = reader.array
            if found.class_names is None and name == names[0]:
                found.class_names = class_names(reader.dataset)
            if field_name == "label":
                label = value_of(field_name, reader)
                continue
            if array.is_listed:  # in values of any length the library may be lost
                value_of(field_name, reader)
            size_bytes += math.prod(array.shape) * array.native.itemsize
            offset = -1 if reader.offset is None else reader.offset
            sample[field_name] = Place(path, array, offset)
            if field_name == "image" and array.kind == "number" and len(array.shape) == 3:
                found.image_sizes.append((array.shape[0], array.shape[1]))
        found.places.append(sample)
        sizes.append(size_bytes)
        labels.append(label)
    found.sizes = sizes
    if any(label is not None for label in labels):
        found.labels = labels
    return found


def _sample_datasets(
    group: Any, fields: Mapping[str, str] | None, *, shown: str
) -> dict[str, tuple[str, Any]]:
    """Find path and dataset of the fields in the group of a sample.

    Args:
        group: The group.
        fields: Paths of datasets by field; None: all there are.
        shown: The group's name, for messages.

    Raises:
        Refused: Two would be one field, or one has a name that no field may have.
    """
    if fields is not None:
        return {name: (p, follow(group, p)) for name, p in fields.items() if p in group}
    found: dict[str, tuple[str, Any]] = {}
    for path, dataset in members(group, shown=shown):
        if is_group(dataset):
            continue
        name = _FIELD_NAMES.get(path, path)
        _check_name(name, path)
        if name in found:
            raise Refused(f"{shown!r} has the field {name!r} twice")
        found[name] = path, dataset
    return found


def value_of(name: str, reader: ArrayReader) -> Any:
    """Read the value of a dataset that is a field of one record.

    Raises:
        Damaged: It is damaged.
    """
    whole, array = reader.whole(), reader.array
    if array.kind == "number":
        numbers = native(np.asarray(whole))
        return numbers if numbers.ndim else numbers.item()
    elements = whole.ravel().tolist() if array.shape else [whole]
    values = [held(value, _holds_of(name, array), array, None) for value in elements]
    for value in values:
        if isinstance(value, Damaged):
            raise value
    return values if array.shape else values[0]


def _holds_of(name: str, array: Array) -> str:
    """Tell what lists of a field are, where nothing says it: of images, encoded ones."""
    return "bytes" if name in ("image", "mask") and array.dtype == "|u1" else "array"


def held(value: Any, holds: str, array: Array, shape: Any) -> Any:
    """Decode an element of text or bytes; `Damaged` where it cannot be that.

    Args:
        value: As the library gives it: bytes, or an array for a list.
        holds: What a list of bytes is, see `Column`.
        array: The dataset.
        shape: Of the value.
    """
    from penstock.core.record_codec import unpack_fields

    if isinstance(value, Damaged) or isinstance(shape, Damaged):
        return value if isinstance(value, Damaged) else shape
    if array.is_text:
        return text_of(value)
    if array.kind == "bytes":
        return bytes(value)
    if holds == "array":
        try:
            return value if shape is None else value.reshape(shape)
        except ValueError:
            return Damaged(f"{value.size} values cannot have the shape {shape.tolist()}")
    content = value.tobytes()
    try:
        if holds == "text":
            return content.decode()
        if holds == "any":
            return unpack_fields(content, 0)["value"]
        return parse_json(content) if holds == "json" else content
    except (ValueError, KeyError, TypeError, IndexError):
        return Damaged(f"its {holds} value cannot be read")


def _keys(readers: Mapping[str, ArrayReader], count: int | None) -> list[bytes] | None:
    """Read the keys of a file's rows, if it has such."""
    path = next((name for name in readers if name in KEY_NAMES), None)
    if path is None:
        return None
    array = readers[path].array
    is_number = array.kind == "number" and array.native.kind in "iu"
    if len(array.shape) != 1 or not (is_number or array.is_text):
        raise Refused(f"{path!r} holds no keys, expected text or numbers")
    if count is not None and array.shape[0] != count:
        raise Refused(
            f"{path} has {array.shape[0]:,} rows and the fields have {count:,}, expected the same "
            f"number"
        )
    values = readers[path].whole().tolist()
    return [b"%d" % v if is_number else v.rstrip(b"\0") for v in values]


def _row_labels(reader: ArrayReader) -> list[str] | NDArray[Any]:
    array = reader.array
    if array.is_text and len(array.shape) == 1:
        return _texts(reader, "label")
    if array.kind != "number" or array.native.kind not in "iub" or len(array.shape) != 1:
        raise Refused(
            f"label is {array.kind} {array.native} {list(array.shape)}, expected integers [N], "
            f"class ids from 0 on, or names; give it another name: "
            f"dataset.storage.fields={{target:labels}}"
        )
    return reader.whole()


def _class_names(file: OpenFile, readers: Mapping[str, ArrayReader]) -> Sequence[str] | None:
    """Read the names of the classes, in a dataset or in attributes."""
    for name, reader in readers.items():
        if name in CLASS_NAMES and reader.array.is_text:
            return _texts(reader, name)
    said = (class_names(reader.dataset) for reader in readers.values())
    found = next((names for names in said if names), None)
    return found or class_names(file.top) or class_names(file.file)


def _texts(reader: ArrayReader, shown: str) -> list[str]:
    texts = []
    for row, value in enumerate(reader.whole().ravel().tolist()):
        text = text_of(value)
        if isinstance(text, Damaged):
            raise Refused(f"{shown}: row {row}: {text}, expected text")
        texts.append(text)
    return texts


def _joined_labels(found: Sequence[Found], where: str) -> Any:
    """Join the labels of all records, integers [N] or names."""
    arrays = [each.labels for each in found]
    if all(isinstance(labels, np.ndarray) for labels in arrays):
        return np.concatenate(arrays)  # type: ignore[arg-type]
    labels = [
        label
        for each in found
        for label in ([None] * len(each.sizes) if each.labels is None else each.labels)
    ]
    kinds = {type(label) for label in labels}
    if kinds == {str}:
        return labels
    if kinds <= {int, bool}:
        return np.array(labels, np.int64)
    wrong = next((n for n, label in enumerate(labels) if type(label) is not type(labels[0])), 0)
    keys = [key for each in found for key in each.keys or ()]
    shown = keys[wrong].decode(errors="backslashreplace") if keys else str(wrong)
    raise ValueError(
        f"{where}: label of {shown!r} is {labels[wrong]!r:.40}, expected one class id or name for "
        f"every sample"
    )


def _refuse_different(found: Sequence[Found], files: Sequence[str], where: str) -> None:
    """Raise ValueError for files that are not of one kind."""
    first = found[0]
    for name, each in zip(files, found, strict=True):
        if each.rows != first.rows:
            raise ValueError(
                f"{where}: some files hold arrays and others groups of samples; name files of one "
                f"kind: dataset.storage.path='part-*.h5'"
            )
        if (each.keys is None) != (first.keys is None):
            raise ValueError(f"{where}: {name}: only some of the files have keys; give all some")
        if each.columns.keys() != first.columns.keys() and not each.is_packed:
            raise ValueError(
                f"{where}: {name}: has the fields {', '.join(each.columns)}, and {files[0]} has "
                f"{', '.join(first.columns)}; write all files with the same datasets, or name "
                f"those to read in dataset.storage.fields"
            )


def _check_rows(columns: Mapping[str, Column], readers: Mapping[str, ArrayReader]) -> None:
    first = next(iter(columns), "")
    for name, column in columns.items():
        array = column.array
        if not array.shape:
            raise Refused(
                f"{name} is one value, expected an axis of samples first; name the datasets to "
                f"read: {_FIELDS_REMEDY}"
            )
        if array.shape[0] != columns[first].array.shape[0]:
            raise Refused(
                f"{first} has {columns[first].array.shape[0]:,} rows and {name} has "
                f"{array.shape[0]:,}, expected the same number"
            )
        if array.kind != "number" and len(array.shape) != 1:
            raise Refused(f"{name} has {len(array.shape)} axes of texts, expected one")
        for beside, axes in ((column.shapes, 2), (column.missing, 1)):
            if beside is not None:
                shape = readers[beside].array.shape
                if len(shape) != axes or shape[0] != array.shape[0]:
                    raise Refused(f"{beside} does not fit {name}")
        if name == "image" and array.kind == "number":
            remedy = "save them so, or give the field another name: "
            remedy += "dataset.storage.fields={array:images}"
            if fault := images_fault(array.shape, array.native.str, remedy=remedy):
                raise Refused(fault)


def _check_name(name: str, path: str) -> None:
    """Raise `Refused` for a name that no field may have; `path` is what would give it."""
    if name in _RESERVED or not FIELD.fullmatch(name):
        raise Refused(
            f"{path} would be a field {name!r}, expected a name of letters, digits and _ that is "
            f"none of {', '.join(_RESERVED)}; name the datasets to read: {_FIELDS_REMEDY}"
        )


def _is_beside(
    name: str, paths: Collection[str], readers: Mapping[str, ArrayReader] | None = None
) -> bool:
    """Tell whether a dataset is no field: keys, names of classes, the shapes of another."""
    if name in CLASS_NAMES and readers is not None:
        return readers[name].array.is_text
    stem, dot, ending = name.rpartition(".")
    return (
        name in KEY_NAMES
        or name in CLASS_NAMES
        or (stem in paths and dot + ending in BESIDE_ENDINGS)
    )


def _packed(reader: ArrayReader) -> dict[str, Any]:
    try:
        about = parse_json(text_attribute(reader.dataset, PACKED) or "{}")
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}

"""Read image files in a folder, and write them into a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from penstock.core.contracts import Storage, Writer
from penstock.core.parts import PackPlan, Part, PartSummary, Written, written_keys
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import (
    MissingFile,
    absolute_path,
    is_url,
    read_each,
    read_file,
)
from penstock.datasets.files.clients import side_by_side
from penstock.datasets.files.data_files import (
    IMAGE_ENDINGS,
    Scan,
    no_images,
)
from penstock.datasets.files.listings import find_file
from penstock.datasets.records.folder_storage import FolderStorage
from penstock.datasets.records.labels import (
    FileLabels,
    Unlabelled,
    class_ids,
    names_from_folders,
)
from penstock.datasets.records.table import Table, numbered

_NAME_BYTES = 255  # the limit of file systems
_PATH_BYTES = 2048
_CHUNK = 1 << 16


@register("storage", "image_folder")
class ImageFolder(FolderStorage):
    """Image files below a folder, found by a scan or named by a pattern.

    Records have the fields ``image`` (the file's bytes) and, with labels, ``label``. With other
    `endings`, the field is ``audio``, or the ending. Keys are paths relative to the folder.
    Empty and unreadable files stay records and are reported as bad samples on use.

    Args:
        path: The folder, or its URL.
        labels: ``folder`` (the first folder below `path`, if any), ``filename``, the path of a CSV,
            or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        label_columns: For a CSV: the column of the files' paths below `path`, with or without their
            ending, and the column of their labels.
        unlabelled: Drop files without a row in the CSV (``leave_out``), or raise an ``error``.
            None: drop and report them, but raise if they are more than half.
        pattern: File names in place of a scan, such as ``img_{:07d}.jpg``, which stores nothing for
            each file. With the default labels, a pattern without a folder gives no labels.
        count: The number of files that `pattern` names.
        start: The number in the first file name.
        classes: Class names by id; None: the classes found, sorted (numbers by their value).
        follow_symlinks: Include linked files and folders.
        hidden: Include names that begin with a dot.
        endings: Endings of image files, in any case.
    """

    name = "image_folder"
    holds = "images"
    reads_urls = True

    def __init__(
        self,
        path: str,
        *,
        labels: str | None = "folder",
        label_pattern: str | None = None,
        label_columns: tuple[str, str] = ("key", "label"),
        unlabelled: Unlabelled = None,
        pattern: str | None = None,
        count: int | None = None,
        start: int = 0,
        classes: list[str] | None = None,
        follow_symlinks: bool = True,
        hidden: bool = False,
        endings: tuple[str, ...] = IMAGE_ENDINGS,
    ) -> None:
        self.path = absolute_path(path)
        self.labels = FileLabels.of(
            labels, label_pattern, label_columns, unlabelled, folder=self.path
        )
        self.pattern = pattern
        self.count = count
        self.start = start
        self.classes = None if classes is None else tuple(classes)
        self.follow_symlinks = follow_symlinks
        self.hidden = hidden
        self.endings = tuple(endings)
        if (pattern is None) != (count is None):
            raise ValueError(f"{self}: pattern and count belong together; got only one of them")
        if pattern is not None:
            self._check_pattern(pattern)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether a scan lists the files of a URL; a pattern notices no change."""
        return super().is_remote and self.pattern is None

    def mark(self) -> Any:
        """Return the state of the labels' CSV; a URL is listed only without a pattern."""
        if self.pattern is not None and is_url(self.path):
            return [None, self.labels.csv_version()]
        return super().mark()

    def is_current(self, index: Table, mark: Any) -> bool:
        """Return whether the CSV and all folders are unchanged."""
        if self.pattern is not None:
            return bool(index.metadata.get("mark") == mark)
        return super().is_current(index, mark)

    def nothing(self, found: Scan) -> str:
        """Explain that no images were found, and list the other files."""
        remedy = "set dataset.storage.path, or take another dataset=..."
        return no_images(found.others, self.endings, remedy)

    def remedy(self) -> str:
        """Return the option to set, with the folder that a list of files names."""
        return f"set dataset.storage.path{_folder_beside(self.path)}"

    def _check_pattern(self, pattern: str) -> None:
        assert self.count is not None
        if self.count < 0 or self.start < 0:
            raise ValueError(f"{self}: count and start must be 0 or more")
        try:
            distinct = pattern.format(0) != pattern.format(1)
        except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{self}: pattern {pattern!r} does not format a number ({error}); expected one "
                f"like img_{{:07d}}.jpg"
            ) from error
        if not distinct:
            raise ValueError(
                f"{self}: pattern {pattern!r} gives every file one name; put the number in, as "
                f"in img_{{:07d}}.jpg"
            )

    def scan(self) -> Table:
        """Find the files, or generate their names, and their labels."""
        if self.pattern is None:
            return super().scan()
        return self.labelled(Table(numbered(self.count or 0, self.pattern, self.start)))

    def labelled(self, table: Table) -> Table:
        """Add the labels; files outside of class folders stay unlabelled."""
        if self.labels.source == "folder":
            keys = table.raw_keys() if self.pattern is None else [self.pattern.encode()]
            if not any(b"/" in key for key in keys):
                return table
        return super().labelled(table)


def _folder_beside(path: str) -> str:
    """Return the text that replaces a file naming folders of images, or an empty text.

    The file is YOLO's ``data.yaml``, or a list of image files.
    """
    name, file = os.path.basename(path), Path(path)
    try:
        if file.suffix == ".txt":
            train = file.parent / file.read_text("utf-8-sig").split("\n")[0].strip()
            folders = [train.parent]
        elif file.suffix in (".yaml", ".yml"):
            content = yaml.safe_load(file.read_text("utf-8-sig"))
            train = content["train"]
            [train] = train if isinstance(train, list) else [train]
            # Roboflow writes ../train/images for the folder train/images beside the file.
            names = (train, train.removeprefix("../"))
            folders = [file.parent / content.get("path", "") / each for each in names]
        else:
            return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return ""
    known = [*folders, file.parent / "images" / "train", file.parent / "train" / "images"]
    folder = next((Path(os.path.normpath(each)) for each in known if each.is_dir()), None)
    if folder is None:
        return ""
    # Parts are folders of images/, or each part is a folder with images/ and labels/.
    root = folder.parent.parent if folder.name == "images" else folder.parent
    return f"={root} dataset/annotations=yolo task=detection in place of {name}"


@register("writer", "image_folder")
class ImageFolderWriter(Writer):
    """A folder for each class, with the image files, which keep their bytes.

    Keys are the files' paths and must have the form ``<class>/<name>.jpg``, as keys of records
    from folders have. Classes must be sorted by name and records by key, and each record has an
    image file, a label, and no other field.
    """

    part_records = 4096
    cannot_hold = frozenset(
        ("keys", "numbered", "order", "classes", "pixels", "arrays", "shapes", "bytes", "numbers",
         "values", "no image")
    )  # fmt: skip

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Check that all keys are paths of image files, and the samples."""
        keys = list(_all_keys(plan))
        for key in keys:
            if problem := _problem(key):
                raise _refusal(f"the key {_shown(key)} {problem}, and it would be a file's path")
        for one, other in pairwise(keys):
            if one >= other:
                raise _refusal(f"{_shown(other)} stands behind {_shown(one)}, and files are sorted")
        _refuse_classes(keys, plan)
        for record in plan.samples:
            _content(record, plan)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write files."""
        names, made = [], set()
        for record in records:
            content = _content(record, plan)
            [key] = plan.index.raw_keys(np.array([record.index]))
            name = os.fsdecode(key)
            if (parent := os.path.dirname(name)) not in made:
                made.add(parent)
                os.makedirs(folder / parent, exist_ok=True)
            (folder / name).write_bytes(content)
            names.append(name)
        return Written(files=tuple(names))

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Check that every class still has a file, since unreadable records are missing."""
        _refuse_classes(written_keys(plan, summaries), plan)


def _all_keys(plan: PackPlan) -> Iterator[bytes]:
    for first in range(0, len(plan), _CHUNK):
        yield from plan.index.raw_keys(np.arange(first, min(first + _CHUNK, len(plan))))


def _problem(key: bytes) -> str | None:
    parts = key.split(b"/")
    stem, _, ending = parts[-1].rpartition(b".")
    if len(parts) < 2 or any(part[:1] in (b"", b".") for part in parts):
        return "is not <class>/<name> of names that do not begin with a dot"
    if f".{ending.decode('ascii', 'replace').lower()}" not in IMAGE_ENDINGS or not stem:
        return f"does not end in {', '.join(IMAGE_ENDINGS[:3])} or the like"
    if any(byte < 32 or byte == 127 for byte in key) or b"\\" in key:
        return "has a control character or a backslash"
    if len(key) > _PATH_BYTES or max(map(len, parts)) > _NAME_BYTES:
        return "is too long"
    return None


def _refuse_classes(keys: Sequence[bytes], plan: PackPlan) -> None:
    """Refuse classes whose ids would change when they are found as folders."""
    texts = [key.decode("utf-8", "backslashreplace") for key in keys]
    _, found = class_ids(names_from_folders(texts, where="pack"), None, where="pack")
    if tuple(found) == tuple(plan.class_names or ()):
        return
    given = list(plan.class_names or ())
    gone = [name for name in given if name not in set(found)]
    what = f"the class {gone[0]!r} lacks files" if gone else "classes are not as folders sort them"
    raise _refusal(what if given else "the records lack classes")


def _content(record: Record, plan: PackPlan) -> bytes:
    """Return a record's image file; refuse other fields."""
    if extra := sorted(record.fields.keys() - {"image", "label"}):
        raise _refusal(f"{record.key!r} has a field {extra[0]!r}")
    image, label = record.fields.get("image"), record.fields.get("label")
    if not isinstance(image, bytes | bytearray | memoryview):
        raise _refusal(f"{record.key!r} lacks an image that is an encoded file")
    folder = record.key.partition("/")[0]
    classes = plan.class_names or ()
    name = classes[label] if label is not None and 0 <= label < len(classes) else None
    if name != folder:
        raise _refusal(f"{record.key!r} is of the class {name!r} and in the folder {folder!r}")
    return bytes(image)


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return repr(text if len(text) < 80 else f"{text[:77]}...")


def _refusal(what: str) -> ValueError:
    return ValueError(f"pack.to=image_folder: {what}; pack.to=zip and the other forms hold it")


@register("storage", "image_files")
class ImageFiles(Storage):
    """Image files by their paths, without labels, in the given order.

    Records have the field ``image`` (the file's bytes); their keys are the paths as given.

    Args:
        paths: The files, or their URLs; duplicates are dropped.
    """

    def __init__(self, paths: list[str]) -> None:
        paths = list(dict.fromkeys(paths))
        self.paths = [absolute_path(os.path.expanduser(path)) for path in paths]
        # A missing file is a bad record, reported when it is read.
        sizes = {path: os.path.getsize(path) for path in self.paths if os.path.exists(path)}
        self._behind = [path for path in self.paths if is_url(path)]
        for url, found in zip(self._behind, side_by_side(find_file, self._behind), strict=True):
            sizes[url] = 0 if found is None else found.size_bytes
        self.index = Table(paths, {"size_bytes": [sizes.get(p, 0) for p in self.paths]})

    def __str__(self) -> str:
        return f"image_files of {len(self)} files"

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read files; a missing or forbidden file is a bad record.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: A disk error persisted.
        """
        rows = np.asarray(indices, np.int64).tolist()
        return list(read_each(self._read, rows, place=self._behind[0] if self._behind else ""))

    def _read(self, row: int) -> Record | BadRecord:
        if not 0 <= row < len(self):
            raise IndexError(f"{self}: index {row} is outside 0 .. {len(self) - 1}")
        path, [key] = self.paths[row], self.index.keys(np.array([row]))
        try:
            return Record(row, key, {"image": read_file(path, root=os.path.dirname(path))})
        except MissingFile as error:
            return BadRecord(row, key, str(error))

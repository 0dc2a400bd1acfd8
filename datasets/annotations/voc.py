"""Read boxes from Pascal VOC: an XML file per image."""

from __future__ import annotations

import os
from typing import Literal
from xml.etree import ElementTree

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.rows import BadBoxes, LabelSource, ObjectRows, Objects
from penstock.datasets.files.access import MissingFile, read_file
from penstock.datasets.records.label_files import LabelFile, find_labels, matched_files
from penstock.datasets.records.matching import plain, stem_of

_MAX_BYTES = 1 << 26
_MOST = 1 << 31


@register("annotations", "voc")
class VocAnnotations:
    """Read boxes from Pascal VOC: an XML file per image, with the same name.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive, clipped
    to the image), ``box_labels`` int64 [N], and ``box_difficult``, ``box_truncated`` int64 [N]. A
    broken XML, or one that names another file, makes its record bad.

    Args:
        path: The folder of the XML files, in the data's folder or beside it; ``{part}`` is train or
            val. Names match keys, in the same subfolders or without them.
        one_based: Pixel coordinates begin at 1, as in VOC itself; false: at 0.
        difficult: ``keep`` or ``drop`` difficult objects.
        rescale: The file describes images of another size: scale boxes from the stated size to the
            image. False: an image of another size is a bad record.
        missing: For an image without an XML: raise an ``error``, or accept it as ``empty``.
        bad_boxes: For a box without area in its image: ``drop`` it with a warning, or make its
            ``record`` bad.
    """

    def __init__(
        self,
        path: str = "annotations",
        *,
        one_based: bool = True,
        difficult: Literal["keep", "drop"] = "keep",
        missing: Literal["error", "empty"] = "error",
        rescale: bool = False,
        bad_boxes: BadBoxes = "drop",
    ) -> None:
        self.path = path
        self.one_based = one_based
        self.difficult = difficult
        self.missing = missing
        self.rescale = rescale
        self.bad_boxes: BadBoxes = bad_boxes

    def of(self, records: RecordsToLabel) -> list[ObjectRows]:
        """Read the boxes of records; see `core.contracts.Annotations`."""
        folder, where = find_labels("voc", "folder", self.path, records)
        files = matched_files(records, folder, ".xml", self.missing, where=where, what="XML")

        def read() -> tuple[list[Objects | str], dict[str, list[str]]]:
            return [
                Objects() if file is None else self._parse(file, key, folder)
                for key, file in zip(records.keys, files, strict=True)
            ], {}

        return LabelSource("voc", vars(self), records, files, where).objects(read)

    def _parse(self, file: LabelFile, key: str, root: str) -> Objects | str:
        """Parse the objects of an XML file, or return the cause of a bad record."""
        name = os.path.basename(file.path)
        if file.size_bytes > _MAX_BYTES:
            return f"{name} has {file.size_bytes:,} bytes, too many for an annotation"
        try:
            text = read_file(file.path, root=root)
        except MissingFile as error:
            return f"{name} {error}"
        try:
            tree = _parse_xml(text)
        except ValueError as error:
            return f"{name} {error}"
        try:
            return self._objects(tree, key)
        except ValueError as error:
            return f"{name}: {error}"

    def _objects(self, root: ElementTree.Element, key: str) -> Objects:
        named = plain((root.findtext("filename") or "").strip())
        if named and _base(named) != _base(plain(key)):
            raise ValueError(
                f"names another file, {named!r}; correct <filename> or the file's name"
            )
        found = Objects(extras={"difficult": [], "truncated": []})
        width, height = (_whole(root, f"size/{side}") for side in ("width", "height"))
        if width > 0 and height > 0:
            found.size = (width, height)
        for node in root.iter("object"):
            difficult = _whole(node, "difficult")
            if difficult and self.difficult == "drop":
                continue
            label = (node.findtext("name") or "").strip()
            if not label:
                raise ValueError("an object lacks a name")
            edges = [_number(node, f"bndbox/{n}") for n in ("xmin", "ymin", "xmax", "ymax")]
            if self.one_based:  # the last pixel is inclusive, so its far edge keeps its number
                edges[0] -= 1
                edges[1] -= 1
            found.boxes.append(edges)
            found.names.append(label)
            found.extras["difficult"].append(difficult)
            found.extras["truncated"].append(_whole(node, "truncated"))
        return found


def _base(name: str) -> str:
    return stem_of(name.rpartition("/")[2])


def _parse_xml(text: bytes) -> ElementTree.Element:
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise ValueError("declares a document type or entities, which annotations do not need")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(f"is no XML: {error}") from None


def _number(node: ElementTree.Element, path: str, default: float | None = None) -> float:
    text = node.findtext(path)
    if text is None or not text.strip():
        if default is None:
            raise ValueError(f"an object has no {path.replace('/', '.')}")
        return default
    try:
        return float(text)
    except ValueError:
        raise _no_number(path, text) from None


def _whole(node: ElementTree.Element, path: str) -> int:
    number = _number(node, path, 0.0)
    if not abs(number) < _MOST:  # or NaN
        raise _no_number(path, str(number))
    return int(number)


def _no_number(path: str, text: str) -> ValueError:
    name = path.replace("/", ".")
    return ValueError(f"{name} is {text.strip()[:40]!r}, expected a number")

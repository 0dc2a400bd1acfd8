"""Read boxes from Pascal VOC: an XML file per image."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal
from xml.etree import ElementTree

from penstock.core.contracts import RecordsToLabel
from penstock.core.registry import register
from penstock.datasets.annotations.label_source import (
    LabelSource,
    Objects,
    RecordFields,
    whole_number,
)
from penstock.datasets.records.label_tables import number_of


@register("annotations", "voc")
@dataclass
class VocAnnotations:
    """Read boxes from Pascal VOC: an XML file per image, with the same name.

    Records get ``boxes`` float32 [N, 4] (xyxy, pixels, right and bottom edge exclusive), and
    ``box_labels`` int64 [N].

    Args:
        path: The folder, in the data's folder or beside it; ``{part}`` is train or val. null:
            ``annotations`` or ``Annotations``.
        one_based: Pixel coordinates begin at 1, as in VOC itself; false: at 0.
        difficult: ``keep`` or ``drop`` difficult objects.
        rescale: Scale boxes from another image size; false: such a record is bad.
        missing: Raise an ``error`` for images without an XML, or accept them as ``empty``.
    """

    path: str | None = None
    _: KW_ONLY
    one_based: bool = True
    difficult: Literal["keep", "drop"] = "keep"
    missing: Literal["error", "empty"] = "error"
    rescale: bool = False

    def of(self, records: RecordsToLabel) -> list[RecordFields]:
        usual = ("annotations", "Annotations")
        source = LabelSource.find(self, records, "folder", *([self.path] if self.path else usual))
        files = source.match_files(".xml", what="XML")
        return [RecordFields(source.table(lambda: source.parsed(files, self._add).found({})))]

    def _add(self, text: bytes, row: int, objects: Objects) -> None:
        """Add the objects of a record."""
        root = ElementTree.fromstring(text)
        size = [_whole(root, f"size/{side}") for side in ("width", "height")]
        if min(size) > 0:
            objects.sizes[row] = size
        for node in root.iter("object"):
            if _whole(node, "difficult") and self.difficult == "drop":
                continue
            label = (node.findtext("name") or "").strip()
            if not label:
                raise ValueError("an object lacks a name")
            texts = {each.tag: each.text for each in node.iterfind("bndbox/*")}
            names = ("xmin", "ymin", "xmax", "ymax")
            edges = [number_of(texts.get(name) or "", name) for name in names]
            if self.one_based:  # the last pixel is inclusive, so its far edge keeps its number
                edges[:2] = [edge - 1 for edge in edges[:2]]
            objects.boxes.append((row, *edges))
            objects.names.append(label)


def _whole(node: ElementTree.Element, path: str) -> int:
    return whole_number(node.findtext(path) or 0, path)

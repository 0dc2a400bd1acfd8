"""Mean average precision of boxes, as COCO counts it, by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import torch
from torchmetrics import Metric

Boxes = dict[str, torch.Tensor]

_FIGURES = {"map": 0, "map_50": 1, "map_75": 2, "map_small": 3, "map_medium": 4, "map_large": 5,
            "mar_100": 8}  # fmt: skip


class BoxMap(Metric):
    """Mean average precision of boxes over IoU 0.50 to 0.95, and its parts.

    Everything is kept until the end; ranks are put together by the images' numbers.

    Args:
        num_classes: Number of classes.
        class_names: With them, a ``map_<name>`` for each class.
    """

    full_state_update = False
    higher_is_better = True
    images: list[torch.Tensor]
    found: list[torch.Tensor]
    truth: list[torch.Tensor]

    def __init__(self, num_classes: int, *, class_names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.class_names = class_names
        # Flat and of one type, so that a rank that saw nothing can be joined to the others.
        self.set_dtype(torch.float64)
        for state in ("images", "found", "truth"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(self, images: torch.Tensor, found: Sequence[Boxes], truth: Sequence[Boxes]) -> None:
        """Add images.

        Args:
            images: A number for each image, unique over all ranks, int64 [B].
            found: For each image ``boxes`` [N, 4], xyxy, ``scores`` [N] and ``labels`` [N].
            truth: For each image ``boxes`` [M, 4] and ``labels`` [M]; ``crowd`` [M], where set,
                marks boxes that need not be found.
        """
        self.images.append(images.double())
        for number, boxes in zip(images.tolist(), found, strict=True):
            columns = [boxes["boxes"], boxes["scores"][:, None], boxes["labels"][:, None]]
            self.found.append(_rows(number, columns))
        for number, boxes in zip(images.tolist(), truth, strict=True):
            crowd = boxes.get("crowd", torch.zeros_like(boxes["labels"]))
            self.truth.append(
                _rows(number, [boxes["boxes"], boxes["labels"][:, None], crowd[:, None]])
            )

    def compute(self) -> dict[str, torch.Tensor]:
        """Figures by name; -1 where nothing of that kind is in the data."""
        images = torch.unique(_joined(self.images).long()).tolist()
        truth, found = _joined(self.truth).double().cpu(), _joined(self.found).double().cpu()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
            stats, precision = self._evaluated(images, truth.reshape(-1, 7), found.reshape(-1, 7))
        figures = {name: torch.tensor(float(stats[row])) for name, row in _FIGURES.items()}
        for number, name in enumerate(self.class_names or ()):
            values = precision[:, :, number, 0, -1]  # all areas, at most 100 boxes
            known = values[values > -1]
            figures[f"map_{name}"] = torch.tensor(float(known.mean()) if known.size else -1.0)
        return figures

    def _evaluated(self, images: list[int], truth: Any, found: Any) -> tuple[Any, Any]:
        try:
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval
        except ImportError as error:
            raise ValueError(
                "task detection: mean average precision needs pycocotools; "
                "pip install -c constraints.txt '.[detection]'"
            ) from error

        known = COCO()
        known.dataset = {
            "images": [{"id": number} for number in images],
            "categories": [{"id": number} for number in range(self.num_classes)],
            "annotations": [
                _annotation(row, number, box, int(label), int(crowd))
                for row, (number, *box, label, crowd) in enumerate(truth.tolist(), start=1)
            ],
        }
        known.createIndex()
        results = [
            {**_annotation(row, number, box, int(label), 0), "score": score}
            for row, (number, *box, score, label) in enumerate(found.tolist(), start=1)
        ]
        guessed = COCO()
        guessed.dataset = {**known.dataset, "annotations": results}
        guessed.createIndex()
        evaluation = COCOeval(known, guessed, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        return evaluation.stats, evaluation.eval["precision"]


def _rows(number: int, columns: list[torch.Tensor]) -> torch.Tensor:
    values = torch.cat([column.double() for column in columns], 1)
    return torch.cat([values.new_full((len(values), 1), number), values], 1).flatten()


def _joined(state: Any) -> torch.Tensor:
    """A state as one tensor, before and after it was gathered."""
    if isinstance(state, torch.Tensor):
        return state
    return torch.cat(list(state)) if len(state) else torch.zeros(0)


def _annotation(
    row: int, image: float, box: Sequence[float], label: int, crowd: int
) -> dict[str, Any]:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    return {
        "id": row,
        "image_id": int(image),
        "category_id": label,
        "bbox": [left, top, width, height],
        "area": width * height,
        "iscrowd": crowd,
    }

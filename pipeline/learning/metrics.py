"""Measure what torchmetrics lacks: box mAP, mask IoU, retrieval, metrics by name."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric, MetricCollection, R2Score
from torchmetrics.classification import MulticlassConfusionMatrix

from penstock.pipeline.learning.outputs import joined_names

Boxes = dict[str, torch.Tensor]


def collected(**metrics: Metric) -> MetricCollection:
    """Put metrics together, each with a state of its own.

    Groups of metrics that share their state differ by rank where a rank saw nothing.
    """
    named: Any = metrics
    return MetricCollection(named, compute_groups=False)


_FIGURES = {"map": 0, "map_50": 1, "map_75": 2, "map_small": 3, "map_medium": 4, "map_large": 5,
            "mar_100": 8}  # fmt: skip


class BoxMap(Metric):
    """Mean average precision of boxes over IoU 0.50 to 0.95, and its parts.

    Everything is kept until the end; ranks are put together by the images' numbers.

    Args:
        num_classes: Number of classes.
        class_names: With them, a ``map_class_<name>`` for each class.
        by_class: Also give ``average_precision``, float [num_classes].
        masks: Compare the boxes' masks, and not the boxes.
    """

    full_state_update = False
    higher_is_better = True
    images: list[torch.Tensor]
    found: list[torch.Tensor]
    truth: list[torch.Tensor]
    found_runs: list[torch.Tensor]
    truth_runs: list[torch.Tensor]

    def __init__(
        self,
        num_classes: int,
        *,
        class_names: Sequence[str] | None = None,
        by_class: bool = False,
        masks: bool = False,
    ) -> None:
        super().__init__()
        self.masks = masks
        self.num_classes = num_classes
        self.class_names = class_names
        self.by_class = by_class
        # Flat and of one type, so that a rank that saw nothing can be joined to the others.
        self.set_dtype(torch.float64)
        for state in ("images", "found", "truth", "found_runs", "truth_runs"):
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
        if self.masks:
            for state, rows in ((self.found_runs, found), (self.truth_runs, truth)):
                state += [as_numbers(run).to(images.device) for row in rows
                          for run in run_lengths(row["masks"])]  # fmt: skip

    def compute(self) -> dict[str, torch.Tensor]:
        """Figures by name; -1 where nothing of that kind is in the data."""
        images = torch.unique(_joined(self.images).long()).tolist()
        truth, found = _joined(self.truth).double().cpu(), _joined(self.found).double().cpu()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
            stats, precision = self._evaluated(images, truth.reshape(-1, 7), found.reshape(-1, 7))
        figures = {name: torch.tensor(float(stats[row])) for name, row in _FIGURES.items()}
        of_classes = precision[:, :, :, 0, -1]  # all areas, at most 100 boxes
        means = [
            float(values[values > -1].mean()) if (values > -1).any() else float("nan")
            for values in np.moveaxis(of_classes, 2, 0)
        ]
        for name, mean in zip(self.class_names or (), means, strict=False):
            figures[f"map_class_{name}"] = torch.tensor(-1.0 if mean != mean else mean)
        return {**figures, "average_precision": torch.tensor(means)} if self.by_class else figures

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
            # It looks the size of an image up, and needs none for run lengths.
            "images": [{"id": number, "height": 0, "width": 0} for number in images],
            "categories": [{"id": number} for number in range(self.num_classes)],
            "annotations": [
                _annotation(row, number, box, int(label), int(crowd))
                for row, (number, *box, label, crowd) in enumerate(truth.tolist(), start=1)
            ],
        }
        if self.masks:
            _add_runs(known.dataset["annotations"], self.truth_runs)
        known.createIndex()
        results = [
            {**_annotation(row, number, box, int(label), 0), "score": score}
            for row, (number, *box, score, label) in enumerate(found.tolist(), start=1)
        ]
        if self.masks:
            _add_runs(results, self.found_runs)
        guessed = COCO()
        guessed.dataset = {**known.dataset, "annotations": results}
        guessed.createIndex()
        evaluation = COCOeval(known, guessed, "segm" if self.masks else "bbox")
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


_LETTERS = 6  # bytes that a float64 holds exactly


def run_lengths(masks: torch.Tensor) -> list[dict[str, Any]]:
    """Encode masks [N, H, W] as COCO's run lengths, ``size`` and ``counts``, compressed."""
    from pycocotools import mask

    pixels = np.asfortranarray(masks.to("cpu", torch.uint8).numpy().transpose(1, 2, 0))
    runs: list[dict[str, Any]] = mask.encode(pixels) if len(masks) else []
    return runs


def as_numbers(runs: Mapping[str, Any]) -> torch.Tensor:
    """Pack run lengths into a state: height, width, number of letters, and these, float64."""
    letters = runs["counts"]
    padded = letters.ljust(-(-len(letters) // _LETTERS) * _LETTERS, b"\0")
    rows = np.frombuffer(padded, np.uint8).reshape(-1, _LETTERS).astype(np.float64)
    packed = rows @ (256.0 ** np.arange(_LETTERS))
    return torch.from_numpy(np.concatenate([[*runs["size"], len(letters)], packed]))


def _add_runs(annotations: Sequence[dict[str, Any]], state: Any) -> None:
    """Give annotations their masks, in the order in which `as_numbers` packed them."""
    numbers = _joined(state).double().cpu().numpy()
    start = 0
    for annotation in annotations:
        height, width, count = map(int, numbers[start : start + 3])
        stop = start + 3 + -(-count // _LETTERS)
        packed = numbers[start + 3 : stop].astype(np.uint64)
        letters = (packed[:, None] >> (8 * np.arange(_LETTERS, dtype=np.uint64))).astype(np.uint8)
        counts = letters.tobytes()[:count]
        annotation["segmentation"] = {"size": [height, width], "counts": counts}
        annotation["area"] = _area(annotation["segmentation"])
        start = stop


def _area(runs: dict[str, Any]) -> float:
    from pycocotools import mask

    return float(mask.area(runs))


class MaskIou(Metric):
    """Mean intersection over union and pixel accuracy, over all pixels of all images.

    Args:
        num_classes: Number of classes.
        ignore: Classes that have no pixels that count, and are left out of the mean.
        ignored_id: What stands in the truth where a pixel does not count.
        class_names: With them, an ``iou_class_<name>`` for each class that counts.
        by_class: Also give ``iou``, float [num_classes], and ``confusion``.
    """

    full_state_update = False
    higher_is_better = True

    def __init__(
        self,
        num_classes: int,
        *,
        ignore: Sequence[int] = (),
        ignored_id: int = -100,
        class_names: Sequence[str] | None = None,
        by_class: bool = False,
    ) -> None:
        super().__init__()
        self.ignore = tuple(ignore)
        self.class_names = class_names
        self.by_class = by_class
        self.ignored_id = ignored_id
        # With a class for pixels that do not count: to leave them out waits for the device.
        self.confusion = MulticlassConfusionMatrix(num_classes + 1, validate_args=False)

    def update(self, predicted: torch.Tensor, truth: torch.Tensor) -> None:
        """Add images: class ids, int64 [B, H, W] each."""
        ignored = self.confusion.num_classes - 1
        self.confusion.update(predicted, truth.masked_fill(truth == self.ignored_id, ignored))

    def compute(self) -> dict[str, torch.Tensor]:
        """``miou`` over the classes that occur in truth or prediction, ``pixel_accuracy``, ..."""
        confusion = self.confusion.compute()[:-1, :-1]
        matrix = confusion.double()
        hits = matrix.diagonal()
        union = matrix.sum(0) + matrix.sum(1) - hits
        counts = union > 0
        counts[[number for number in self.ignore if number < len(counts)]] = False
        iou = hits / union.clamp(min=1)
        figures = {
            "miou": iou[counts].mean() if counts.any() else iou.new_zeros(()),
            "pixel_accuracy": hits.sum() / matrix.sum().clamp(min=1),
        }
        for number, name in enumerate(self.class_names or ()):
            if number not in self.ignore:
                figures[f"iou_class_{name}"] = iou[number]
        if self.by_class:
            figures |= {"iou": iou.masked_fill(~counts, float("nan")), "confusion": confusion}
        return figures

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.confusion.reset()


class LabelScores(Metric):
    """How well several labels of a sample are found: mean average precision and F1.

    A class without a label that is there counts for no mean of average precision, and one that is
    neither there nor found for no mean of F1. Everything is kept until the end.

    Args:
        num_classes: Number of classes.
        threshold: The probability from which on a label is given.
        by_class: Also give ``average_precision``, ``precision``, ``recall`` and ``f1``, float
            [num_classes], and ``count``, integer [num_classes].
    """

    full_state_update = False
    higher_is_better = True
    rows: list[torch.Tensor]

    def __init__(self, num_classes: int, *, threshold: float, by_class: bool = False) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.threshold = threshold
        self.by_class = by_class
        # Flat, so that a rank that saw nothing can be joined to the others.
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, found: torch.Tensor, truth: torch.Tensor) -> None:
        """Add samples: probabilities and whether each label is there (NaN: unknown), [B, C]."""
        self.rows.append(torch.stack([found.float(), truth.float()], 1).flatten())

    def compute(self) -> dict[str, torch.Tensor]:
        """``map``, ``f1_macro`` (their mean over classes), ``f1_micro`` (of all labels)."""
        from torchmetrics.functional.classification import binary_average_precision

        found, truth = _joined(self.rows).float().reshape(-1, 2, self.num_classes).unbind(1)
        known, there = ~truth.isnan(), truth == 1
        given = (found >= self.threshold) & known
        hits, said, count = (each.sum(0) for each in (given & there, given, there))
        precision = [
            binary_average_precision(found[rows, n], truth[rows, n].long())
            if count[n]
            else found.new_full((), float("nan"))
            for n, rows in enumerate(known.T)
        ]
        of_classes = {
            "average_precision": torch.stack(precision),
            "precision": hits / said,
            "recall": hits / count,
            "f1": 2 * hits / (said + count),
            "count": count,
        }
        means = {
            "map": of_classes["average_precision"].nanmean(),
            "f1_macro": of_classes["f1"].nanmean(),
            "f1_micro": 2 * hits.sum() / (said.sum() + count.sum()),
        }
        figures = {name: mean.nan_to_num() for name, mean in means.items()}
        return {**figures, **of_classes} if self.by_class else figures


class ValueErrors(Metric):
    """Distances of predicted numbers from the true ones: mean, root of the mean square, and R2.

    Args:
        deviations: Units of each number, by which it was divided.
        by_class: Also give the figures of each number, and how many were known, [K].
    """

    full_state_update = False
    higher_is_better = None
    sums: torch.Tensor

    def __init__(self, deviations: Sequence[float], *, by_class: bool = False) -> None:
        super().__init__()
        self.deviations = list(deviations)
        self.by_class = by_class
        self.set_dtype(torch.float64)
        zeros = torch.zeros(5, len(self.deviations), dtype=torch.float64)
        self.add_state("sums", default=zeros, dist_reduce_fx="sum")

    def update(self, found: torch.Tensor, truth: torch.Tensor) -> None:
        """Add predicted and true numbers, scaled, [B, K]; a true NaN is not known."""
        known = ~truth.isnan()
        error = (found - truth).double().where(known, 0)
        truth = truth.double().where(known, 0)
        terms = (known.double(), error.abs(), error.square(), truth, truth.square())
        self.sums += torch.stack([term.sum(0) for term in terms])

    def compute(self) -> dict[str, torch.Tensor]:
        """``mae``, ``rmse`` and ``r2``: means over the numbers, NaN where nothing is known."""
        count, distance, square, total, squares = self.sums
        scale = self.sums.new_tensor(self.deviations)
        variance = squares - total.square() / count
        of_each = {
            "mae": distance / count * scale,
            "rmse": (square / count).sqrt() * scale,
            "r2": (1 - square / variance).masked_fill(count < 2, float("nan")),
        }
        figures = {name: each.nanmean() for name, each in of_each.items()}
        if not self.by_class:
            return figures
        named = dict(
            zip(("absolute_error", "rms_error", "r2_score"), of_each.values(), strict=True)
        )
        return {**figures, **named, "count": count.long()}


class NamedMetrics(nn.ModuleDict):
    """Collections of metrics by name; a figure is called ``<name>_<figure>``.

    One of several numbers, as those by class are, is called ``<name>/<figure>``.
    """

    def compute(self) -> dict[str, torch.Tensor]:
        """All figures, over all ranks.

        Raises:
            ValueError: Two are called the same.
        """
        metrics: dict[str, Any] = dict(self.items())
        return joined_names(
            (f"{name}{'/' if np.ndim(value) else '_'}{figure}", value)
            for name, collection in metrics.items()
            for figure, value in collection.compute().items()
        )

    def reset(self) -> None:
        """Forget everything."""
        collections: Any = self.values()
        for collection in collections:
            collection.reset()


class ExplainedVariance(R2Score):
    """R2 as `torchmetrics.R2Score` has it; NaN over fewer than two samples."""

    def compute(self) -> torch.Tensor:
        """The score over all ranks."""
        if self.total < 2:
            return torch.full((), float("nan"), device=self.total.device)
        return super().compute()


RANKS = (1, 5, 10)
_QUERIES_AT_ONCE = 256
_BOTH, _QUERY, _GALLERY = 0, 1, 2


class Retrieval(Metric):
    """Cumulative matching characteristics (CMC) and mean average precision (mAP).

    Each query ranks the gallery by the distance of the features. By the protocol of Zheng et al.,
    "Scalable Person Re-identification: A Benchmark" (Market-1501), ICCV 2015: what the query's own
    camera took of its identity, and what is nobody (an identity below 0), is left out of its
    ranking; a query of which nothing is left to find does not count. The average precision of a
    query is the mean over its finds of the precision there. Of equal distances, the lower
    position comes first.

    Without roles, each image is a query among all others.

    Everything is kept until the end; ranks are put together by the images' positions.
    """

    full_state_update = False
    higher_is_better = True
    rows: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        # Flat and of one type, so that a rank that saw nothing can be joined to the others.
        self.set_dtype(torch.float64)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(
        self,
        positions: torch.Tensor,
        features: torch.Tensor,
        identities: torch.Tensor,
        cameras: torch.Tensor,
        roles: torch.Tensor,
    ) -> None:
        """Add images.

        Args:
            positions: Unique over all ranks, int64 [B].
            features: float [B, D].
            identities: int64 [B]; below 0: nobody.
            cameras: int64 [B]; below 0: not known.
            roles: int64 [B]: 1 for a query, 2 for the gallery, 0 for both.
        """
        columns = [positions, identities, cameras, roles]
        marks = torch.stack([column.double() for column in columns], 1)
        size = marks.new_full((len(marks), 1), features.shape[1])
        self.rows.append(torch.cat([size, marks, features.double()], 1).flatten())

    def compute(self) -> dict[str, torch.Tensor]:
        """``rank_1``, ``rank_5``, ``rank_10`` and ``map``, each 0 .. 1; 0 if no query counts."""
        rows = _joined(self.rows)
        found, precision = _searched(rows) if len(rows) else ([], [])
        if not found:
            return _figures(torch.zeros(0, max(RANKS)), torch.zeros(0))
        return _figures(torch.stack(found).double(), torch.stack(precision))


def _searched(rows: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Rank the gallery for each query: ranks by which something is found, and the precision."""
    table = rows.double().reshape(-1, 5 + int(rows[0]))
    table = table[table[:, 1].argsort(stable=True)]
    _, positions, identities, cameras, roles = table[:, :5].long().unbind(1)
    features = table[:, 5:].float()
    gallery = ((roles != _QUERY) & (identities >= 0)).nonzero()[:, 0]
    queries = ((roles != _GALLERY) & (identities >= 0)).nonzero()[:, 0]
    found: list[torch.Tensor] = []
    precision: list[torch.Tensor] = []
    for some in queries.split(_QUERIES_AT_ONCE):
        distances = torch.cdist(
            features[some], features[gallery], compute_mode="donot_use_mm_for_euclid_dist"
        )
        alike = identities[some][:, None] == identities[gallery]
        seen = (cameras[some][:, None] == cameras[gallery]) & (cameras[some][:, None] >= 0)
        left_out = (alike & seen) | (positions[some][:, None] == positions[gallery])
        for distance, hit, kept in zip(distances, alike, ~left_out, strict=True):
            hits = hit[kept][distance[kept].argsort(stable=True)]
            if hits.any():
                ranks = hits.nonzero()[:, 0] + 1
                counts = torch.arange(1, len(ranks) + 1, device=ranks.device)
                precision.append((counts / ranks).double().mean())
                found.append(torch.arange(1, max(RANKS) + 1, device=ranks.device) >= ranks[0])
    return found, precision


def _figures(found: torch.Tensor, precision: torch.Tensor) -> dict[str, torch.Tensor]:
    count = max(len(precision), 1)
    figures = {f"rank_{rank}": found[:, rank - 1].sum() / count for rank in RANKS}
    return {**figures, "map": precision.sum() / count}

"""Label: any number of classes for a sample, binary cross-entropy and mean average precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import (
    Probabilities,
    logits_of,
    mean_over_valid,
    named,
    valid_rows,
)

if TYPE_CHECKING:
    import torch


@register("task", "multilabel")
class MultiLabel:
    """Any number of labels for a sample: binary cross-entropy, mean average precision and F1.

    Labels that are not known, NaN, are left out of the loss and of the metrics.

    Args:
        num_classes: Classes of the data.
        class_names: Their names, by id.
        threshold: What a class's probability must be at least for its label to be given.
        positive_weight: What a label that is there weighs in the loss beside one that is not.
    """

    field = "labels"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        threshold: Annotated[float, Ge(0), Le(1)] = 0.5,
        positive_weight: Annotated[float, Gt(0)] = 1.0,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task multilabel: the data names no labels; choose "
                "dataset/annotations=labels_csv, or another task"
            )
        self.num_classes = num_classes
        self.class_names = class_names
        self.threshold = threshold
        self.positive_weight = positive_weight

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``binary_cross_entropy``, over valid rows the mean of each row's mean over its labels.

        Args:
            outputs: Logits, float [B, num_classes], or a dict that has them as ``logits``.
            batch: ``labels`` float [B, num_classes], 1 or 0, between these where images were
                mixed, NaN where it is not known; and ``valid`` bool [B].
        """
        import torch
        from torch.nn import functional

        logits, labels = self._logits(outputs), self._labels(batch)
        known = ~labels.isnan()
        weight = torch.full_like(labels[0], self.positive_weight)
        entropy = functional.binary_cross_entropy_with_logits(
            logits, labels.nan_to_num(), pos_weight=weight, reduction="none"
        )
        # `where`: an infinite loss where nothing is known must not turn into a NaN.
        by_row = entropy.where(known, 0).sum(1) / known.sum(1).clamp(min=1)
        return {"binary_cross_entropy": mean_over_valid(by_row, batch.get("valid"))}

    def metrics(self) -> Any:
        """``map``, the mean of the classes' average precision, ``f1_macro`` and ``f1_micro``."""
        return self._metrics(by_class=False)

    def metrics_by_class(self) -> Any:
        """The same, and of each class average precision, precision, recall, F1 and count."""
        return self._metrics(by_class=True)

    def _metrics(self, *, by_class: bool) -> Any:
        from penstock.pipeline.learning.metrics import LabelScores, collected

        return collected(
            labels=LabelScores(self.num_classes, threshold=self.threshold, by_class=by_class)
        )

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        found, truth = valid_rows(batch, self._logits(outputs), self._labels(batch))
        if len(truth):
            metrics.update(found.detach().float().sigmoid(), truth)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """``predicted``, the classes from the threshold on, and the ``probability`` of each.

        The likeliest is first; ``labels`` are the true ones, where the data has them.
        """
        import torch

        found = self._logits(outputs).float().sigmoid()[:, : self.num_classes]
        names = named(range(self.num_classes), self.class_names)
        told: dict[str, Any] = {}
        if "labels" in batch:
            told["labels"] = _named_rows(self._labels(batch) == 1, names)
        order = found.argsort(dim=1, descending=True, stable=True)
        there = torch.gather(found, 1, order) >= self.threshold
        told["predicted"] = [
            named(row[: int(count)], names)
            for row, count in zip(order.tolist(), there.sum(1).tolist(), strict=True)
        ]
        return {**told, "probability": Probabilities(found, names)}

    def _logits(self, outputs: Any) -> torch.Tensor:
        logits = logits_of(outputs, task="multilabel", shape=("B", self.num_classes))
        return logits[:, : self.num_classes]  # a head may have more

    def _labels(self, batch: Batch) -> torch.Tensor:
        """Whether each label is there, float [B, num_classes].

        Raises:
            ValueError: The batch has none, or others.
        """
        labels: Any = batch.get("labels")
        if labels is None or isinstance(labels, list):
            has = "lists" if labels is not None else f"only {', '.join(sorted(batch))}"
            raise ValueError(
                f"task multilabel: expected 'labels' [B, {self.num_classes}] in the batch, got "
                f"{has}; choose dataset/annotations=labels_csv and collate=stack"
            )
        if labels.ndim != 2 or labels.shape[1] != self.num_classes:
            raise ValueError(
                f"task multilabel: labels are {list(labels.shape)}, expected "
                f"[B, {self.num_classes}]: the data says that it has {self.num_classes} classes"
            )
        return labels.float()


def _named_rows(there: torch.Tensor, names: list[str | int]) -> list[list[str | int]]:
    return [[names[n] for n, is_there in enumerate(row) if is_there] for row in there.tolist()]

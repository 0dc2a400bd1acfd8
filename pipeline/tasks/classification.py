"""Classify: one class per sample, cross-entropy and accuracy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.class_weights import ClassWeights, Weights
from penstock.pipeline.learning.outputs import (
    Probabilities,
    logits_of,
    mean_over_valid,
    named,
    valid_rows,
)

if TYPE_CHECKING:
    import torch


@register("task", "classification")
class Classification:
    """One class per sample: cross-entropy and accuracy.

    Args:
        num_classes: Classes of the data.
        class_names: Their names, by label.
        label_smoothing: Share of the target spread over all classes, 0 .. 1.
        top_k: Also count a sample as right if its class is among the k likeliest; 1: only that.
        class_weights: What the loss of a sample is multiplied by, by its class: ``balanced`` (less
            for what occurs often in the training data), a weight by name (1 where it is not said),
            or all in their order.
    """

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        label_smoothing: Annotated[float, Ge(0), Le(1)] = 0.0,
        top_k: Annotated[int, Ge(1)] = 1,
        class_weights: Weights = None,
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task classification: the data has no classes; set dataset.storage.labels (of "
                "tables dataset.storage.label_column, of arrays a file labels.npy, of streams "
                "dataset.source.classes, with dataset=torch dataset.classes=10, or their "
                "names), or choose another task"
            )
        if num_classes == 1:
            raise ValueError(
                f"task classification: all data is of one class "
                f"({class_names[0] if class_names else 0}), and a model that always says so is "
                f"right; name where the labels are with dataset.storage.labels"
            )
        if top_k > num_classes:
            raise ValueError(f"task.top_k is {top_k}, expected 1 .. {num_classes} (the classes)")
        self.num_classes = num_classes
        self.weights = ClassWeights(class_weights, num_classes=num_classes, class_names=class_names)
        self.class_names = class_names
        self.label_smoothing = label_smoothing
        self.top_k = top_k

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Count the records of each class, if their weights are to be balanced."""
        return self.weights.fit(index, "label")

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""
        self.weights.learn(figures)

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """``cross_entropy``, the mean over valid rows; 0, with a gradient of 0, if none is.

        Args:
            outputs: Logits, float [B, num_classes], or a dict that has them as ``logits``.
            batch: ``label`` int64 [B] and ``valid`` bool [B]; where images were mixed, also
                ``label_other`` int64 [B] and ``label_weight`` float32 [B], the share of
                ``label``: the loss of a row is the mean of both, so weighted.
        """
        from torch.nn import functional

        logits = self._logits(outputs)
        labels = self._labels(batch)
        entropy = functools.partial(
            functional.cross_entropy, logits, weight=self.weights.like(logits),
            label_smoothing=self.label_smoothing, reduction="none",
        )  # fmt: skip
        by_row = entropy(labels)
        if "label_other" in batch:
            other, weight = entropy(batch["label_other"]), batch["label_weight"]
            # `where`: an infinite loss for a class of no weight must not turn into a NaN.
            by_row = (weight * by_row).where(weight > 0, 0) + ((1 - weight) * other).where(
                weight < 1, 0
            )
        return {"cross_entropy": mean_over_valid(by_row, batch.get("valid"))}

    def _labels(self, batch: Batch) -> torch.Tensor:
        """Class ids, int64 [B].

        Raises:
            ValueError: There are none, or one is no class; on a device the loss itself stops at it.
        """
        if "label" not in batch:
            raise ValueError(
                f"task classification: the batch has no 'label', only {', '.join(sorted(batch))}; "
                f"name where the labels are with dataset.storage.labels, or see what the model "
                f"says of such data with predict"
            )
        labels: torch.Tensor = batch["label"]
        wrong = (labels < 0) | (labels >= self.num_classes)
        if labels.device.type == "cpu" and wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"task classification: {batch['key'][row]!r} has label {int(labels[row])}, "
                f"expected 0 to {self.num_classes - 1}: the data says that it has "
                f"{self.num_classes} classes; correct the label or the classes"
            )
        return labels

    def _logits(self, outputs: Any) -> torch.Tensor:
        return logits_of(outputs, task="classification", shape=("B", self.num_classes))

    def metrics(self) -> Any:
        """``accuracy``, and ``top<k>_accuracy`` where `top_k` is above 1."""
        from penstock.pipeline.learning.metrics import collected

        return collected(**self._accuracies())

    def metrics_by_class(self) -> Any:
        """The same, and ``confusion``."""
        from torchmetrics.classification import MulticlassConfusionMatrix

        from penstock.pipeline.learning.metrics import collected

        confusion = MulticlassConfusionMatrix(self.num_classes, validate_args=False)
        return collected(**self._accuracies(), confusion=confusion)

    def _accuracies(self) -> dict[str, Any]:
        from torchmetrics.classification import MulticlassAccuracy

        ranks = {"accuracy": 1} | (
            {f"top{self.top_k}_accuracy": self.top_k} if self.top_k > 1 else {}
        )
        return {
            name: MulticlassAccuracy(
                self.num_classes, top_k=top_k, average="micro", validate_args=False
            )
            for name, top_k in ranks.items()
        }

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`, those that were mixed by their ``label``."""
        logits = self._logits(outputs)
        logits, labels = valid_rows(batch, logits, batch["label"])
        if len(labels):
            metrics.update(logits.float(), labels)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """``class``, the likeliest one's name or id, ``score``, and ``probability`` of each.

        ``label`` is the true class, where the data has it.
        """
        probabilities = self._logits(outputs).float().softmax(1)
        scores, classes = probabilities.max(1)
        names = named(range(self.num_classes), self.class_names)
        names += range(self.num_classes, probabilities.shape[1])  # a head may have more
        truth = {"label": named(self._labels(batch).tolist(), names)} if "label" in batch else {}
        return {
            **truth,
            "class": named(classes.tolist(), names),
            "score": scores,
            "probability": Probabilities(probabilities, names),
        }

"""Predict one or several numbers of an image, measured in their own units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.core.contracts import Index
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import mean_over_valid, valid_rows

if TYPE_CHECKING:
    import torch


@register("task", "image_regression")
class ImageRegression:
    """One or several numbers of an image: trained on scaled distances, measured in their units.

    A model predicts ``(value - mean) / deviation`` by the training part's figures, so that its
    outputs are of the order of 1 whatever the units. What is not known, NaN, counts for nothing.

    Args:
        num_classes: Values of an image.
        class_names: Their names.
        loss: ``mse`` (squared distance), ``mae`` (distance) or ``huber`` (squared up to 1).
    """

    field = "values"

    def __init__(
        self,
        *,
        num_classes: int | None,
        class_names: tuple[str, ...] | None = None,
        loss: Literal["mse", "mae", "huber"] = "mse",
    ) -> None:
        if not num_classes:
            raise ValueError(
                "task image_regression: the data names no values; choose "
                "dataset/annotations=values_csv, or of tables task=regression"
            )
        self.num_classes = num_classes
        self.class_names = class_names or tuple(map(str, range(num_classes)))
        self.loss = loss
        self.means = [0.0] * num_classes
        self.deviations = [1.0] * num_classes

    def fit(self, index: Index | None) -> dict[str, dict[str, float]]:
        """Compute mean and deviation of each value; see `core.contracts.FittedTask`."""
        if index is None:
            raise ValueError(
                "task image_regression: a stream has no index to know the values' means from; read "
                "the data by place, such as dataset=webdataset, with dataset/annotations=values_csv"
            )
        figures = {}
        for name in self.class_names:
            if f"value_{name}" not in index.columns:
                raise ValueError(
                    f"task image_regression: not all of the data has the value {name!r}; give the "
                    f"sources of a mix the same, by dataset.annotations.value_columns"
                )
            column = np.asarray(index.column(f"value_{name}"), np.float64)
            column = column[~np.isnan(column)]
            if not len(column):
                raise ValueError(
                    f"task image_regression: no record of the training part has a value {name!r}; "
                    f"leave it out by dataset.annotations.value_columns"
                )
            figures[name] = {"mean": float(column.mean()), "deviation": float(column.std()) or 1.0}
        return figures

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""
        self.means = [figures[name]["mean"] for name in self.class_names]
        self.deviations = [figures[name]["deviation"] for name in self.class_names]

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """The loss by its name, over valid rows the mean of each row's mean over its values.

        Args:
            outputs: Scaled numbers, float [B, K], or a dict that has them as ``prediction``.
            batch: ``values`` float [B, K] in their own units and ``valid`` bool [B].
        """
        from torch.nn import functional

        call: Any = {
            "mse": functional.mse_loss,
            "mae": functional.l1_loss,
            "huber": functional.huber_loss,
        }[self.loss]
        found, truth = self._found(outputs), self._scaled(batch)
        known = truth.isfinite()
        # What is not known aims at what was found: its gradient is 0 and no NaN.
        distance = call(found, truth.where(known, found.detach()), reduction="none")
        by_row = distance.sum(1) / known.sum(1).clamp(min=1)
        return {self.loss: mean_over_valid(by_row, batch.get("valid"))}

    def metrics(self) -> Any:
        """``mae``, ``rmse``, in the values' units, and ``r2``: means over the values."""
        return self._metrics(by_class=False)

    def metrics_by_class(self) -> Any:
        """The same, and of each value."""
        return self._metrics(by_class=True)

    def _metrics(self, *, by_class: bool) -> Any:
        from penstock.pipeline.learning.metrics import ValueErrors, collected

        return collected(errors=ValueErrors(self.deviations, by_class=by_class))

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        found, truth = valid_rows(batch, self._found(outputs), self._scaled(batch))
        if len(truth):
            metrics.update(found.detach(), truth)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """``prediction_<name>`` of each value, and ``<name>``, the true one, where it is known."""
        found = self._found(outputs).double()
        told: dict[str, Any] = {}
        for place, name in enumerate(self.class_names):
            if "values" in batch:
                told[name] = batch["values"][:, place]
            scaled = found[:, place] * self.deviations[place] + self.means[place]
            told[f"prediction_{name}"] = scaled.float()
        return told

    def _found(self, outputs: Any) -> torch.Tensor:
        """Take the predicted numbers, scaled, float [B, K]."""
        found = outputs["prediction"] if isinstance(outputs, Mapping) else outputs
        shape = list(getattr(found, "shape", ()))
        if shape == [math.prod(shape)] and self.num_classes == 1:
            return found.float()[:, None]
        if len(shape) != 2 or shape[1] < self.num_classes:
            raise ValueError(
                f"task image_regression: the model gave {shape or type(found).__name__}, expected "
                f"numbers [B, {self.num_classes}]; take a model for this task, such as "
                f"model=small_cnn"
            )
        numbers: torch.Tensor = found[:, : self.num_classes].float()  # a head may have more
        return numbers

    def _scaled(self, batch: Batch) -> torch.Tensor:
        """Scale the true numbers, float [B, K].

        Raises:
            ValueError: The batch has none, or others.
        """
        values: Any = batch.get("values")
        if values is None or isinstance(values, list) or values.ndim != 2:
            has = f"only {', '.join(sorted(batch))}" if values is None else "something else"
            raise ValueError(
                f"task image_regression: expected 'values' [B, {self.num_classes}] in the batch, "
                f"got {has}; choose dataset/annotations=values_csv and collate=stack"
            )
        means, deviations = (values.new_tensor(n) for n in (self.means, self.deviations))
        scaled: torch.Tensor = (values - means).float() / deviations
        return scaled

"""Predict one number per sample, measured in its own units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import mean_over_valid, valid_rows

if TYPE_CHECKING:
    import torch


@register("task", "regression")
class Regression:
    """One number per sample: trained on its scaled distance, measured in its own units.

    A model predicts ``(target - mean) / deviation`` by the training part's figures, so that its
    outputs are of the order of 1 whatever the units.

    Args:
        table: What ``dataset/decode=table`` knows of the target; None: it is not scaled.
        target: The field of the batch to be predicted; ``dataset.decode.target`` is the column.
        loss: ``mse`` (squared distance), ``mae`` (distance) or ``huber`` (squared up to 1).
    """

    field = "target"

    def __init__(
        self,
        *,
        table: Any = None,
        target: str = "target",
        loss: Literal["mse", "mae", "huber"] = "mse",
    ) -> None:
        self.target = target
        self.loss = loss
        column = None
        if target == "target" and table is not None:
            column = table.statistics.target
            if column is None:
                raise ValueError(
                    "task regression: no column is to be predicted; name it with "
                    "dataset.decode.target=<column>"
                )
        self.shift = 0.0 if column is None else column.mean
        self.scale = 1.0 if column is None else column.std or 1.0

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """The loss by its name, the mean over valid rows; 0, with a gradient of 0, if none is.

        Args:
            outputs: The scaled number, float [B] or [B, 1].
            batch: ``target`` float [B] in its own units and ``valid`` bool [B].
        """
        from torch.nn import functional

        call: Any = {
            "mse": functional.mse_loss,
            "mae": functional.l1_loss,
            "huber": functional.huber_loss,
        }[self.loss]
        found, truth = self._found(outputs, batch)
        scaled = (truth - self.shift) / self.scale
        valid = batch.get("valid")
        if valid is not None:
            # Padding aims at what was found: whatever stands in it, its gradient is 0 and no NaN.
            scaled = scaled.where(valid, found.detach())
        return {self.loss: mean_over_valid(call(found, scaled, reduction="none"), valid)}

    def metrics(self) -> Any:
        """``mae`` and ``rmse``, in the target's units, and ``r2``."""
        from torchmetrics import MeanAbsoluteError, MeanSquaredError

        from penstock.pipeline.learning.metrics import ExplainedVariance, collected

        rmse = MeanSquaredError(squared=False)
        return collected(mae=MeanAbsoluteError(), rmse=rmse, r2=ExplainedVariance())

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""
        found, truth = valid_rows(batch, *self._found(outputs, batch))
        if len(truth):
            metrics.update(found.detach().float() * self.scale + self.shift, truth)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """``prediction``, in the target's units, and the true one, where the batch has it."""
        rows = len(batch["position"])
        found = self._rows(outputs, rows).double() * self.scale + self.shift
        truth = {self.target: batch[self.target]} if self.target in batch else {}
        return {**truth, "prediction": found.float()}

    def _found(self, outputs: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the predicted and the true numbers, float [B]."""
        truth = batch.get(self.target)
        if truth is None or isinstance(truth, list):
            raise ValueError(
                f"task regression: expected numbers as {self.target!r} in the batch, got "
                f"{', '.join(sorted(batch))}; name the column with dataset.decode.target"
            )
        return self._rows(outputs, len(truth)), truth.float()

    @staticmethod
    def _rows(outputs: Any, rows: int) -> torch.Tensor:
        """Take the predicted numbers, scaled, float [B]."""
        found = outputs["prediction"] if isinstance(outputs, dict) else outputs
        if found.numel() != rows:
            raise ValueError(
                f"task regression: the model gave {list(found.shape)}, expected one number for "
                f"each of {rows} rows; data with a label has classes: drop it with "
                f"dataset.keys={{label:null}}, or choose task=table"
            )
        return found.reshape(rows)

"""What consumes batches: a model, its task, and who is told the figures."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from datasets.sample import Batch


class Model(Protocol):
    """A torch module that is called with the batch."""

    def __call__(self, batch: Batch) -> Any: ...


class Task(Protocol):
    """Turns outputs and batch into losses and metrics.

    Losses are means over the rows that are valid; metrics leave invalid rows out. One whose
    outputs are to be written by ``python -m pipeline predict`` is a `PredictingTask` too.
    """

    def losses(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Scalar tensors by name, each the mean over valid rows; their sum is trained on."""

    def metrics(self) -> Any:
        """New and empty: a ``MetricCollection``, or what has its ``compute`` and ``to``."""

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""


@runtime_checkable
class PredictingTask(Protocol):
    """A task whose model's outputs can be told, row by row."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Columns: each a tensor [B] or [B, n], or a list of B plain values, lists or bytes.

        Rows that are not valid are dropped by whoever asked.
        """


class Logger(Protocol):
    """Takes the figures of a run. Called on rank 0 alone."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""

    def state_dict(self) -> dict[str, Any]:
        """Where the log stands, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut the log back to where it stood at the checkpoint."""

    def close(self) -> None:
        """Flush and close."""

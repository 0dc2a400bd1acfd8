"""Train several tasks on one sample: each with its outputs, its losses and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from penstock.core.contracts import ClassTask, PredictingTask
from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.pipeline.learning.outputs import joined_names, output_of

if TYPE_CHECKING:
    import torch


@register("task", "multi")
class Multi:
    """Several tasks by name: a model's ``outputs[name]`` are the outputs of the task `name`.

    Every task is told the classes of its own field. Losses and metrics have the task's name
    before their own, as in ``boxes_map``.

    Args:
        tasks: The tasks by name; null takes one away.
        weights: What a task's losses are multiplied by; 1 where it is not said.
    """

    def __init__(
        self, *, tasks: Mapping[str, Any], weights: Mapping[str, Annotated[float, Ge(0)]] = {}
    ) -> None:
        if not tasks:
            raise ValueError("task multi: no tasks; type task.tasks.<name>._target_=task/<task>")
        for name in tasks:
            if name.startswith("loss") or "." in name or not name:
                raise ValueError(
                    f"task multi: a task is named {name!r}; outputs that begin with 'loss' are a "
                    f"model's own losses, and a dot is no part of a name: call it otherwise"
                )
        for name, weight in weights.items():
            if name not in tasks:
                raise ValueError(f"task.weights: no task {name!r}; tasks: {', '.join(tasks)}")
            if not 0 <= weight < float("inf"):
                raise ValueError(f"task.weights.{name} is {weight}, expected 0 or more")
        self.tasks = dict(tasks)
        self.weights = {name: float(weights.get(name, 1.0)) for name in tasks}

    def losses(self, outputs: Any, batch: Batch) -> dict[str, torch.Tensor]:
        """Every task's losses, weighted, as ``<task>_<loss>``.

        Args:
            outputs: What each task takes, by its name.
            batch: What all of them need.
        """
        return joined_names(
            (f"{name}_{loss}", value * self.weights[name])
            for name, task in self.tasks.items()
            for loss, value in task.losses(self._outputs(outputs, name), batch).items()
        )

    def metrics(self) -> Any:
        """Every task's metrics, their figures as ``<task>_<figure>``."""
        from penstock.pipeline.learning.metrics import NamedMetrics

        return NamedMetrics({name: task.metrics() for name, task in self.tasks.items()})

    def metrics_by_class(self) -> Any:
        """The same, and what is told class by class as ``<task>/<figure>``."""
        from penstock.pipeline.learning.metrics import NamedMetrics

        return NamedMetrics({
            name: task.metrics_by_class() if isinstance(task, ClassTask) else task.metrics()
            for name, task in self.tasks.items()
        })  # fmt: skip

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to every task's metrics."""
        for name, task in self.tasks.items():
            task.update(metrics[name], self._outputs(outputs, name), batch)

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Every task's columns, as ``<task>_<column>``."""
        columns: list[tuple[str, Any]] = []
        for name, task in self.tasks.items():
            if not isinstance(task, PredictingTask):
                raise ValueError(
                    f"task multi: {name!r} is a {type(task).__name__}, which tells no "
                    f"predictions; give its class a method predictions(outputs, batch)"
                )
            told = task.predictions(self._outputs(outputs, name), batch)
            columns += [(f"{name}_{column}", values) for column, values in told.items()]
        return joined_names(columns)

    def _outputs(self, outputs: Any, name: str) -> Any:
        expected = (
            f"a dict with the outputs of each task by its name: {', '.join(self.tasks)}, such as "
            f"model=multi_net gives"
        )
        return output_of(outputs, name, task="multi", expected=expected)

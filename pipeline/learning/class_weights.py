"""Weigh the loss of each class: as given, or against how often the class occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from penstock.core.contracts import Index
from penstock.pipeline.config.errors import listing, nearest

if TYPE_CHECKING:
    import torch

Weight = Annotated[float, Ge(0)]
Weights = Literal["balanced"] | dict[str | int, Weight] | list[Weight] | None
"""What a config says: by class, by name or id (others weigh 1), or in their order."""


class ClassWeights:
    """What the loss of each class is multiplied by.

    Args:
        given: As a config says it; ``balanced`` is N / (C n) for n of N records, of C classes
            that occur, so that the mean over the records is 1.
        num_classes: Classes of the data.
        class_names: Their names.

    Raises:
        ValueError: A class is named that there is not, or their number is another.
    """

    def __init__(
        self, given: Weights, *, num_classes: int, class_names: Sequence[str] | None
    ) -> None:
        self._num_classes = num_classes
        self._balanced = given == "balanced"
        self._values: np.ndarray | None = None
        if isinstance(given, Mapping):
            self._values = _by_class(given, num_classes, class_names)
        elif isinstance(given, list):
            self._values = np.asarray(given, np.float64)
            if len(given) != num_classes:
                raise ValueError(
                    f"task.class_weights has {len(given)} weights, and the data {num_classes} "
                    f"classes ({listing(class_names or map(str, range(num_classes)))}); give one "
                    f"for each, or those that are not 1 by name: task.class_weights={{name:2.0}}"
                )

    def fit(self, index: Index | None, field: str) -> dict[str, list[int]]:
        """Count the records of each class, if they are to be balanced; see `FittedTask`.

        Raises:
            ValueError: The index has no class of a record, as that of masks and of boxes.
        """
        if not self._balanced:
            return {}
        if index is None or field not in index.columns:
            raise ValueError(
                f"task.class_weights is balanced, and the data's index does not tell the class of "
                f"a record ({field}); give weights by class, such as "
                f"task.class_weights={{name:2.0}}, or take the loss as it is: "
                f"task.class_weights=null"
            )
        labels = np.asarray(index.column(field))
        counts = np.bincount(labels[labels >= 0], minlength=self._num_classes)
        return {"class_counts": counts.tolist()}

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take what `fit` counted."""
        if self._balanced:
            counts = np.asarray(figures["class_counts"], np.float64)
            self._values = counts.sum() / (max(np.count_nonzero(counts), 1) * counts.clip(1))

    def like(self, logits: torch.Tensor) -> torch.Tensor | None:
        """The weights of the classes where the logits are, float [C]; None: all are 1."""
        import torch

        if self._values is None:
            return None
        return torch.as_tensor(self._values, dtype=logits.dtype, device=logits.device)


def _by_class(
    given: Mapping[Any, float], num_classes: int, names: Sequence[str] | None
) -> np.ndarray:
    ids = {str(number): number for number in range(num_classes)}
    ids |= {name: number for number, name in enumerate(names or ())}
    values = np.ones(num_classes)
    for name, weight in given.items():
        if str(name) not in ids:
            near = nearest(str(name), names or ids)
            remedy = f"; type task.class_weights.{near}={weight}" if near else ""
            raise ValueError(
                f"task.class_weights: no class {str(name)!r}, the classes are "
                f"{listing(names or ids)}{remedy}"
            )
        values[ids[str(name)]] = weight
    return values

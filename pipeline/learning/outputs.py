"""Read the outputs of a model row by row: take them, average them, tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.contracts import ClassTask
from penstock.core.sample import Batch

if TYPE_CHECKING:
    import torch

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Probabilities:
    """How likely each class is.

    Attributes:
        values: float [B, C].
        names: Names or ids of the C classes.
    """

    values: torch.Tensor
    names: Sequence[str | int]

    def columns(self, name: str, top: int | None) -> dict[str, Any]:
        """Make ``<name>_<class>`` for every class, or of the likeliest ``<name>_1``, ``class_1``.

        Args:
            name: What the columns are called.
            top: How many of the likeliest classes are told; None: all classes.
        """
        if top is None:
            columns = self.values.cpu().unbind(1)  # one copy, whatever the number of classes
            return {f"{name}_{each}": c for each, c in zip(self.names, columns, strict=True)}
        values, ids = self.values.topk(min(top, len(self.names)))
        told: dict[str, Any] = {}
        for rank, (column, classes) in enumerate(zip(values.T, ids.T, strict=True), start=1):
            told[f"{name.removesuffix('probability')}class_{rank}"] = named(
                classes.tolist(), self.names
            )
            told[f"{name}_{rank}"] = column
        return told


def plain_columns(told: Mapping[str, Any], top: int | None = None) -> dict[str, Any]:
    """Make columns of what a task predicts: of each `Probabilities` those that are told."""
    columns: dict[str, Any] = {}
    for name, values in told.items():
        likely = isinstance(values, Probabilities)
        columns |= values.columns(name, top) if likely else {name: values}
    return columns


def output_of(outputs: Any, name: str, *, task: str, expected: str) -> Any:
    """Take one of a model's outputs.

    Raises:
        ValueError: There is none of that name; the message says what is `expected`.
    """
    if not isinstance(outputs, Mapping) or name not in outputs:
        given = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise ValueError(f"task {task}: the model gave {given}; expected {expected}")
    return outputs[name]


def logits_of(outputs: Any, *, task: str, shape: Sequence[Any]) -> torch.Tensor:
    """Take the logits: all that a model gives, or what it calls so in a dict.

    Args:
        outputs: What the model gave.
        task: Who takes them.
        shape: What they are to be, such as ``("B", 10, "H", "W")``; there may be more classes.

    Raises:
        ValueError: It gives a dict without them, or others: it is a model for another task.
    """
    wanted = f"logits [{', '.join(map(str, shape))}]"
    logits = outputs
    if isinstance(outputs, Mapping):
        expected = f"{wanted}, or a dict that has them as 'logits'"
        logits = output_of(outputs, "logits", task=task, expected=expected)
    size: list[int] = list(getattr(logits, "shape", ()))
    if len(size) != len(shape) or size[1] < shape[1]:
        given = f"logits {size}" if size else type(logits).__name__
        raise ValueError(
            f"task {task}: the model gave {given}, expected {wanted}; take a model for this task "
            f"(model=small_cnn classifies, model=segmenter gives each pixel a class), or another "
            f"task"
        )
    return logits


def mean_over_valid(by_row: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """Average [B, ...] over the rows that are valid; 0, with a gradient of 0, if none is.

    Args:
        by_row: float [B, ...].
        valid: bool [B]; None: all rows are.
    """
    if valid is None:
        return by_row.mean(0)
    # `where` and not a product: an infinite loss in padding must not turn into a NaN.
    kept = by_row.where(valid.reshape(-1, *[1] * (by_row.ndim - 1)), by_row.new_zeros(()))
    return kept.sum(0) / valid.sum().clamp(min=1)


def valid_rows(batch: Batch, *values: Any) -> tuple[Any, ...]:
    """Take the valid rows of tensors [B, ...], without waiting for the device to count them.

    Args:
        batch: ``valid``, bool [B], or nothing if all rows are; ``num_valid``, their number.
        values: The tensors.
    """
    valid, count = batch.get("valid"), batch.get("num_valid")
    if valid is None or count == len(valid):
        return values
    if count is None:
        return tuple(value[valid] for value in values)
    rows = valid.byte().argsort(descending=True, stable=True)[:count]
    return tuple(value[rows] for value in values)


def named(ids: Iterable[int], names: Sequence[str | int] | None) -> list[str | int]:
    """The names of class ids; the ids themselves where classes have no names."""
    return [number if names is None else names[number] for number in ids]


def confused_names(task: ClassTask, matrix: Sized) -> list[str]:
    """The names of the rows of a task's confusion matrix."""
    names = [str(name) for name in named(range(task.num_classes), task.class_names)]
    return names + ["background"] * (len(matrix) - len(names))


def size_of(image: torch.Tensor) -> tuple[int, int]:
    """Height and width of float images [..., C, H, W], or uint8 [..., H, W, C]."""
    height, width = image.shape[-2:] if image.is_floating_point() else image.shape[-3:-1]
    return height, width


def joined_names(told: Iterable[tuple[str, V]]) -> dict[str, V]:
    """Put what several tasks tell into one dict.

    Raises:
        ValueError: Two are called the same.
    """
    joined: dict[str, V] = {}
    for name, value in told:
        if name in joined:
            raise ValueError(f"task multi: two of its tasks tell {name!r}; call one otherwise")
        joined[name] = value
    return joined

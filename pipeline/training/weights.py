"""Weights of a checkpoint into a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy


def load_weights(model: nn.Module, weights: Mapping[str, Any], *, where: str, remedy: str) -> None:
    """Load weights that must be those of the model.

    Args:
        model: The model.
        weights: What the state of a model was.
        where: What to say in front of what does not fit.
        remedy: What to say behind it.

    Raises:
        ValueError: They are of another model; the first difference is named.
    """
    try:
        model.load_state_dict(weights)
    except (RuntimeError, KeyError, ValueError) as error:
        misfit = _first_misfit(model.state_dict(), weights) or " ".join(str(error).split())
        raise ValueError(f"{where}: {misfit}; {remedy}") from error


def _first_misfit(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str | None:
    own = {name: value for name, value in own.items() if not is_lazy(value)}
    for name, value in own.items():
        if name not in weights:
            return f"there is no {name} in it, which the model has"
        given, wanted = (getattr(each, "shape", None) for each in (weights[name], value))
        if given != wanted:
            return f"{name} is {_shape(given)} in it and {_shape(wanted)} in the model"
    more = next((name for name in weights if name not in own), None)
    return None if more is None else f"there is a {more} in it, which the model has not"


def _shape(shape: Any) -> str:
    return "no tensor" if shape is None else str(list(shape))

"""Begin with weights that were trained before: take what fits a model, and say what does not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from penstock.pipeline.config.errors import listing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights by name, and the file or URL that they are from."""

    place: str
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a model took of weights.

    Attributes:
        place: Where they are from.
        taken: Names in the model.
        kept: Names that the model begins with as drawn, and why.
        unused: Names in the weights that the model has not.
    """

    place: str
    taken: tuple[str, ...]
    kept: Mapping[str, str]
    unused: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {
            "from": self.place, "taken": self.taken, "kept": self.kept, "unused": self.unused
        }  # fmt: skip

    def tell(self) -> None:
        """Say it in a line."""
        kept = listing((f"{name} ({why})" for name, why in self.kept.items()), 4)
        _log.info(
            "init  %d of %d tensors are from %s%s%s", len(self.taken),
            len(self.taken) + len(self.kept), self.place,
            f"; as drawn: {kept}" if kept else "",
            f"; not used: {listing(self.unused, 4)}" if self.unused else "",
        )  # fmt: skip


def take_weights(model: nn.Module, weights: Weights) -> Taken:
    """Load what fits by name and shape; names may begin otherwise than those of the model.

    Such beginnings are what wraps a model, ``module.`` or ``backbone.``: of up to two words, taken
    off or put before, the pair counts with which most fits.

    Raises:
        ValueError: Nothing fits, or no matrix: a bias may well have the same shape by chance.
    """
    own, given = model.state_dict(), weights.tensors

    def renamed(off: str, on: str) -> dict[str, str]:
        """Names as the model would have them, each with that in the weights."""
        return {on + name.removeprefix(off): name for name in given if name.startswith(off)}

    def fits(name: str, there: str) -> bool:
        return is_lazy(own[name]) or own[name].shape == given[there].shape

    pairs = product(_beginnings(given), _beginnings(own))
    tries = [{n: t for n, t in renamed(*pair).items() if n in own} for pair in pairs]
    best = max(tries, key=lambda tried: sum(fits(*each) for each in tried.items()))
    found = {name: there for name, there in best.items() if fits(name, there)}
    if not any(given[there].ndim > 1 for there in found.values()):
        raise ValueError(
            f"trainer.init_from: nothing in {weights.place} fits the model by name and shape: in "
            f"it there is {_some(given)}, in the model {_some(own)}; give weights of such a model"
        )
    model.load_state_dict({name: given[there] for name, there in found.items()}, strict=False)
    kept = {
        name: f"{[*given[best[name]].shape]} in it, {[*own[name].shape]} here"
        if name in best else "not in it"
        for name in own if name not in found
    }  # fmt: skip
    unused = tuple(name for name in given if name not in best.values())
    return Taken(weights.place, tuple(found), kept, unused)


def _beginnings(names: Iterable[str]) -> list[str]:
    """Nothing, and up to two words that the first name begins with."""
    words = next(iter(names), "").split(".")[:-1]
    return ["", *(".".join(words[:count]) + "." for count in (1, 2) if len(words) >= count)]


def _some(tensors: Mapping[str, Any]) -> str:
    shapes = (
        f"{name} {'(any shape)' if is_lazy(each) else [*each.shape]}"
        for name, each in tensors.items()
    )
    return listing(shapes, 2)

"""Average the weights over the steps, for validation, for checkpoints and for whoever uses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt, Lt

from penstock.core.contracts import Callback
from penstock.core.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn


@register("callback", "ema")
class WeightAverage(Callback):
    """An exponential moving average of the weights: it is what is validated and saved.

    Training goes on with the weights themselves, which a checkpoint keeps beside the average. The
    running figures of batch norm are averaged too.

    Args:
        model: What is trained.
        decay: Share of the average that a step keeps. It rises to this: of the first n steps the
            last keeps (1 + n) / (10 + n), so that a short run's average forgets how it began.
    """

    def __init__(self, *, model: nn.Module, decay: Annotated[float, Gt(0), Lt(1)] = 0.999) -> None:
        self._model = model
        self._decay = decay
        self._steps = 0
        self._others: list[Tensor] = []  # the average; within `evaluating`, what is trained

    def stepped(self, step: int) -> None:
        """Move the average towards the weights."""
        import torch
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        weights, count = self._tensors(), len(list(self._model.parameters()))
        if not self._others:  # not before the first step, since lazy modules have none till then
            self._others = [weight.detach().clone() for weight in weights]
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        get_ema_multi_avg_fn(decay)(self._others[:count], weights[:count], self._steps)
        for mean, now in zip(self._others[count:], weights[count:], strict=True):
            # A count has no mean, and neither has what is infinite for good, such as a mask.
            steady = not mean.is_floating_point()
            mean.copy_(now if steady else now.where(mean == now, torch.lerp(mean, now, 1 - decay)))

    def _tensors(self) -> list[Tensor]:
        return [*chain(self._model.parameters(), self._model.buffers())]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have the average in the model."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange values: whoever holds a weight, such as the optimizer, keeps it."""
        if self._others:
            for weight, other in zip(self._tensors(), self._others, strict=True):
                held = weight.detach().clone()
                weight.data.copy_(other)
                other.copy_(held)

    def state_dict(self) -> dict[str, Any]:
        """The weights that are trained; the average is the model's at that moment."""
        return {"version": 1, "steps": self._steps, "trained": self._others}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the model's weights for the average, and train on with the others."""
        self._steps = int(state["steps"])
        if state["trained"]:
            self._others = [weight.detach().clone() for weight in self._tensors()]
            for weight, trained in zip(self._tensors(), state["trained"], strict=True):
                weight.data.copy_(trained)

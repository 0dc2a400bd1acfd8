"""End a run when what is validated has stopped getting better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Ge

from penstock.core.contracts import Callback
from penstock.core.registry import register


@register("callback", "early_stopping")
class EarlyStopping(Callback):
    """Ends a run when its figure of ``trainer.monitor`` has stopped getting better.

    Args:
        watched: The figure.
        higher: Whether more of it is better.
        patience: Validations without a better one after which training ends.
        min_delta: By how much a better one must be better, in the figure's own scale.
    """

    watches = True
    limits = ("patience",)

    def __init__(
        self,
        *,
        watched: str,
        higher: bool,
        patience: Annotated[int, Ge(1)] = 5,
        min_delta: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        self._watched = watched
        self._higher = higher
        self._patience = patience
        self._min_delta = min_delta
        self._best: float | None = None
        self._since = 0

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """Count the validations since the best one."""
        if not metrics:
            return
        score = metrics[self._watched]
        gain = score - (0.0 if self._best is None else self._best)
        gain = gain if self._higher else -gain
        if (self._best is None and score == score) or gain > self._min_delta:
            self._best, self._since = score, 0
        else:
            self._since += 1

    def stop(self) -> str | None:
        """Tell that there were too many."""
        if self._since < self._patience:
            return None
        best = "a number" if self._best is None else f"better than {self._best:.4g}"
        more = f" by {self._min_delta:g}" if self._min_delta else ""
        times = "validation" if self._since == 1 else f"{self._since} validations"
        return (
            f"{self._watched} was not {best}{more} in the last {times}, so training ends; to go "
            f"on, resume with callback.early_stopping.patience={2 * self._since}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The best figure, and the validations since."""
        return {"version": 1, "best": self._best, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self._best, self._since = state["best"], int(state["since"])

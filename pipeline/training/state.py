"""Where a run stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from pipeline.training.settings import TrainerSettings


@dataclass(slots=True)
class RunState:
    """Where a run stands, in plain numbers that a checkpoint can hold.

    Attributes:
        epoch: The epoch being trained, counted from 0.
        batch: Batches of this epoch that have been trained on.
        step: Optimizer steps made.
        closed: Whether validation and checkpoint of the last step's epoch (or of the last step
            of all) are done; a run interrupted before makes up for them.
        samples: Valid samples trained on, over all ranks.
        window_loss: Sum of the losses since the last line in the metrics.
        window_steps: Number of these losses.
        best: The best score so far.
        metrics: The last validation's figures.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    closed: bool = True
    samples: int = 0
    window_loss: float = 0.0
    window_steps: int = 0
    best: float | None = None
    metrics: dict[str, float] | None = None

    def steps_reached(self, settings: TrainerSettings) -> bool:
        """Whether the settings' optimizer steps are made."""
        return settings.max_steps is not None and self.step >= settings.max_steps

    def reached(self, settings: TrainerSettings) -> bool:
        """Whether as much has been trained as the settings ask for."""
        by_epochs = settings.max_epochs is not None and self.epoch >= settings.max_epochs
        return by_epochs or self.steps_reached(settings)

    def is_better(self, score: float, *, higher: bool) -> bool:
        """Whether a score beats the best one so far; one that is no number never does."""
        if score != score:
            return False
        return self.best is None or (score > self.best if higher else score < self.best)

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over all fields."""
        for field in fields(self):
            setattr(self, field.name, state[field.name])

"""Write figures as TensorBoard events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Logger
from penstock.core.registry import register

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@register("logger", "tensorboard")
class TensorBoardLogger(Logger):
    """Figures as TensorBoard events, in the run's ``tensorboard`` folder.

    Args:
        run_dir: The run's folder.

    Raises:
        ValueError: TensorBoard is not installed.
    """

    draws = True

    def __init__(self, *, run_dir: Path) -> None:
        try:
            import tensorboard  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "logger tensorboard: the package is missing (the extra tensorboard); run: pip "
                "install tensorboard"
            ) from error
        self._folder = Path(run_dir) / "tensorboard"
        self._writer: Any = None
        self._purge_step: int | None = None
        self._last_step = -1

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one scalar for every value."""
        for name, value in values.items():
            self._opened().add_scalar(name, value, step)
        self._last_step = step

    def picture(self, step: int, name: str, picture: NDArray[np.uint8]) -> None:
        """Log a picture of a step, uint8 [H, W, 3], RGB."""
        self._opened().add_image(name, picture, step, dataformats="HWC")

    def _opened(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        return self._writer

    def state_dict(self) -> dict[str, Any]:
        """The last step that was written."""
        if self._writer is not None:
            self._writer.flush()
        return {"version": 1, "last_step": self._last_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have TensorBoard leave out what was written after the checkpoint."""
        self._last_step = int(state["last_step"])
        self._purge_step = self._last_step + 1

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

"""Write figures to Weights & Biases."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Logger
from penstock.core.registry import register

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

_BEGIN_S = 60
_HERE = ("offline", "dryrun", "disabled")
"""Modes of wandb, by WANDB_MODE or its settings, that need no server."""


@register("logger", "wandb")
class WandbLogger(Logger):
    """Figures at Weights & Biases, or in the run's folder ``wandb`` with WANDB_MODE=offline.

    Args:
        run_dir: The run's folder.
        config: The config of the run, which is written there too.
        project: Where the run is listed.
        entity: The user or team whose project it is; None: the user's default.

    Raises:
        ValueError: The package is missing, nobody is logged in, or the server refuses the key.
    """

    remote = True
    draws = True

    def __init__(
        self,
        *,
        run_dir: Path,
        config: Mapping[str, Any],
        project: str = "penstock",
        entity: str | None = None,
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError(
                "logger wandb: the package wandb is missing (the extra wandb); run: "
                "pip install 'wandb>=0.31'"
            ) from error
        self._run_dir, self._config = Path(run_dir), config
        self._project, self._entity = project, entity
        self._run: Any = None
        self._id = secrets.token_hex(4)
        self._exit_code = 0
        if wandb.setup().settings.mode in _HERE:
            return
        try:
            known = wandb.login(prompt=False, verify=True)
        except wandb.Error as error:
            raise _refused(error, "check the server and the key") from error
        if not known:
            raise _refused("nobody is logged in", "type wandb login")

    def begin(self) -> None:
        """Open the run, or continue the checkpoint's run."""
        import wandb

        named = self._config.get("run") or {}
        try:
            self._run = wandb.init(
                project=self._project,
                entity=self._entity,
                id=self._id,
                resume="allow",
                name=named.get("name") or "/".join(self._run_dir.parts[-2:]),
                tags=named.get("tags"),
                config=dict(self._config),
                dir=str(self._run_dir),
                settings=wandb.Settings(silent=True, console="off", init_timeout=_BEGIN_S),
            )
        except wandb.Error as error:
            raise _refused(error, "check logger.wandb.project and entity") from error
        folder = Path(self._run.dir).parent
        here = f"offline; to upload it type wandb sync {folder}"
        _log.info("logger wandb: %s", here if self._run.offline else self._run.url)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step, unless the run has later ones from before a kill."""
        if step >= self._run.step:
            self._run.log(values, step=step)

    def picture(self, step: int, name: str, picture: NDArray[np.uint8]) -> None:
        """Log a picture of a step, uint8 [H, W, 3], RGB."""
        import wandb

        if step >= self._run.step:
            self._run.log({name: wandb.Image(picture)}, step=step)

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"version": 1, "id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the run of a checkpoint."""
        self._id = str(state["id"])

    def failed(self) -> None:
        """Mark the run as failed."""
        self._exit_code = 1

    def close(self) -> None:
        """End the run, when all is uploaded."""
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)


def _refused(why: object, remedy: str) -> ValueError:
    said = " ".join(str(why).split())
    return ValueError(
        f"logger wandb: {said}; {remedy}, or keep the run on this machine: WANDB_MODE=offline"
    )

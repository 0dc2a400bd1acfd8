"""Write figures to an MLflow tracking server or a local store of MLflow."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import Logger
from penstock.core.registry import register
from penstock.datasets.files.passwords import masked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

_EVERY_ROW = "epoch"
"""A figure that each row has; its history says which steps a run has already."""
_LONGEST_PARAMETER = 6000
_PARAMETERS_AT_ONCE = 100


@register("logger", "mlflow")
class MlflowLogger(Logger):
    """Figures in a run of MLflow: at a tracking server, or in MLflow's store on this machine.

    Args:
        run_dir: The run's folder.
        config: The config of the run, which is written there too.
        experiment: Where the run is listed; made if it is not there.
        tracking_uri: The server or database; None: MLFLOW_TRACKING_URI, or what MLflow takes
            without it, ``mlflow.db`` in the working directory.

    Raises:
        ValueError: The package is missing, or the server does not answer.
    """

    remote = True
    draws = True

    def __init__(
        self,
        *,
        run_dir: Path,
        config: Mapping[str, Any],
        experiment: str = "penstock",
        tracking_uri: str | None = None,
    ) -> None:
        # We try again by ourselves; MLflow's own defaults take many minutes over one call.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        try:
            import mlflow
        except ImportError as error:
            raise ValueError(
                "logger mlflow: the package mlflow is missing (the extra mlflow); run: "
                "pip install 'mlflow>=3'"
            ) from error
        self._run_dir, self._config, self._experiment = Path(run_dir), config, experiment
        self._uri = tracking_uri or mlflow.get_tracking_uri()
        self._run: str | None = None
        self._last_step = -1
        self._status = "FINISHED"
        try:
            self._client = mlflow.MlflowClient(self._uri)
            self._client.get_experiment_by_name(experiment)
        except Exception as error:  # each store raises errors of its own
            raise ValueError(self._refused(error)) from error

    def begin(self) -> None:
        """Open the run, or continue the checkpoint's run."""
        try:
            if self._run is None:
                self._run = self._new_run()
            else:
                self._client.update_run(self._run, status="RUNNING")
            self._client.log_dict(self._run, dict(self._config), "config.yaml")
        except Exception as error:
            raise ValueError(self._refused(error)) from error
        _log.info("logger mlflow: run %s at %s", self._run, masked(self._uri))

    def _new_run(self) -> str:
        client, named = self._client, self._config.get("run") or {}
        known = client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else client.create_experiment(self._experiment)
        name = named.get("name") or "/".join(self._run_dir.parts[-2:])
        tags = {tag: "" for tag in named.get("tags") or ()}
        run = str(client.create_run(number, run_name=name, tags=tags).info.run_id)
        from mlflow.entities import Param

        parameters = [Param(key, value) for key, value in _leaves(self._config)]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            client.log_batch(run, params=parameters[start : start + _PARAMETERS_AT_ONCE])
        return run

    def _refused(self, error: Exception) -> str:
        cause: BaseException = error
        while below := cause.__cause__ or cause.__context__:
            cause = below
        said = masked(" ".join(str(cause).split()))[:300]
        return (
            f"logger mlflow: {masked(self._uri)} cannot be used: {said}; start it or correct "
            f"logger.mlflow.tracking_uri (or MLFLOW_TRACKING_URI), such as sqlite:///mlflow.db"
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step, unless the run has later ones from before a kill."""
        if step < self._last_step:
            return
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_key(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def picture(self, step: int, name: str, picture: NDArray[np.uint8]) -> None:
        """Log a picture of a step, uint8 [H, W, 3], RGB."""
        self._client.log_image(self._run, picture, key=_key(name), step=step)

    def state_dict(self) -> dict[str, Any]:
        """The run's id."""
        return {"version": 1, "run": self._run}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the run of a checkpoint, if it is still there."""
        from mlflow.exceptions import MlflowException

        try:
            history = self._client.get_metric_history(state["run"], _EVERY_ROW)
        except MlflowException as error:
            said = " ".join(str(error).split())
            _log.warning("logger mlflow: %s; a new run begins", masked(said))
            return
        self._run = str(state["run"])
        self._last_step = max((each.step for each in history), default=-1)

    def failed(self) -> None:
        """Mark the run as failed."""
        self._status = "FAILED"

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._client.set_terminated(self._run, self._status)


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """List the values of a config by their full keys, as MLflow takes parameters."""
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield _key(key), str(node)[:_LONGEST_PARAMETER]


def _key(name: str) -> str:
    return re.sub(r"[^\w.\-: /]", "_", name)

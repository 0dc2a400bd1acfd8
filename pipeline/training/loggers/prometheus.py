"""Show the newest figures of a run to a Prometheus server that asks for them."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Any

from annotated_types import Ge, Le

from penstock.core.contracts import Logger
from penstock.core.registry import register


@register("logger", "prometheus")
class PrometheusLogger(Logger):
    """Newest figures as gauges at ``http://HOST:PORT/metrics``, while the run goes.

    A name begins with ``penstock_``, and what is no letter and no digit is ``_``: ``train/loss``
    is ``penstock_train_loss``.

    Args:
        port: Where it answers.
        host: The address of this machine that it answers at; ``0.0.0.0``: at all of them, to
            whoever asks.

    Raises:
        ValueError: The package is missing.
    """

    def __init__(
        self, *, port: Annotated[int, Ge(1), Le(65_535)] = 9464, host: str = "127.0.0.1"
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ValueError(
                "logger prometheus: the package prometheus_client is missing (the extra "
                "prometheus); run: pip install 'prometheus_client>=0.19'"
            ) from error
        self._library = prometheus_client
        self._registry = prometheus_client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._port, self._host = port, host
        self._serving: tuple[Any, Any] | None = None

    def begin(self) -> None:
        """Begin to answer, before training."""
        try:
            self._serving = self._library.start_http_server(
                self._port, self._host, registry=self._registry
            )
        except OSError as error:
            raise ValueError(
                f"logger prometheus: {self._host}:{self._port} cannot be used: {error.strerror}; "
                f"type logger.prometheus.port={_free_port()}"
            ) from error

    def log(self, step: int, values: dict[str, float]) -> None:
        """Set the gauge of every value."""
        for name, value in {"step": step, **values}.items():
            told = "penstock_" + re.sub(r"[^a-zA-Z0-9]", "_", name)
            if told not in self._gauges:
                self._gauges[told] = self._library.Gauge(told, name, registry=self._registry)
            self._gauges[told].set(value)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what was shown is kept by who asked."""
        return {"version": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is to be cut back."""

    def close(self) -> None:
        """Answer no more."""
        if self._serving is not None:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            thread.join()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port

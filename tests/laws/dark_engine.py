"""An engine that changes pixels, which `doctor` must find."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock import register

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from executor import PoolExecutor


@register("engine", "laws_dark")
class DarkEngine(PoolExecutor):
    """Gives black images."""

    def _work(self, future: Any, tasks: Any) -> None:
        deliveries = self._compute.several(tasks)
        for delivery in deliveries:
            delivery.batch["image"][:] = 0
        future.set(deliveries)

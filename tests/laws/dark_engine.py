"""An engine that changes pixels, which `doctor` must find."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock import register

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from executor import ExecutorEngine


@register("engine", "laws_dark")
class DarkEngine(ExecutorEngine):
    """Gives black images."""

    def run(self, tasks: Any) -> Any:
        for delivery in super().run(tasks):
            if delivery.batch is not None:
                delivery.batch["image"].zero_()
            yield delivery

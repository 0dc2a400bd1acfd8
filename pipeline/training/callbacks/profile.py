"""Record what some steps spend their time on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from penstock.core.contracts import Callback
from penstock.core.registry import register

_log = logging.getLogger(__name__)


@register("callback", "profile")
class Profile(Callback):
    """Records some steps with torch's profiler, for TensorBoard's plugin and Perfetto.

    The traces are in the run's folder ``profile``. What is recorded is rank 0's; counting begins
    with the second step, since the first one makes what is made once.

    Args:
        run_dir: The run's folder.
        rank: Of this process.
        wait: Steps that are not recorded.
        warmup: Steps behind them whose record is thrown away: the first ones pay for the profiler.
        active: Steps behind them that are recorded.
        repeat: How often that is done; each time gives a file.
        memory: Record what memory is taken and given back.
        stack: Record the lines of Python that called an operator.
    """

    watches = True

    def __init__(
        self,
        *,
        run_dir: Path,
        rank: int,
        wait: Annotated[int, Ge(0)] = 1,
        warmup: Annotated[int, Ge(0)] = 1,
        active: Annotated[int, Ge(1)] = 3,
        repeat: Annotated[int, Ge(1)] = 1,
        memory: bool = False,
        stack: bool = False,
    ) -> None:
        self._folder = Path(run_dir) / "profile"
        self._records = rank == 0
        self._cycle = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        self._memory, self._stack = memory, stack
        self._profiler: Any = None
        self._step = 0
        self._left = repeat

    def stepped(self, step: int) -> None:
        """Begin behind the first step, and tell the profiler of each other one."""
        if not self._records or not self._left:
            return
        from torch import profiler

        self._step = step
        if self._profiler is not None:
            self._profiler.step()
            return
        self._profiler = profiler.profile(
            schedule=profiler.schedule(**self._cycle),
            on_trace_ready=self._write,
            profile_memory=self._memory,
            with_stack=self._stack,
        )
        self._profiler.start()

    def _write(self, profiler: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"step_{self._step}.pt.trace.json"  # the ending that plugin looks for
        profiler.export_chrome_trace(str(file))
        self._left -= 1
        _log.info("callback profile: %s; open it at https://ui.perfetto.dev", file)

    def close(self) -> None:
        """Write what is recorded so far, and tell if that is nothing."""
        if self._profiler is None:
            return
        self._profiler.stop()
        if self._left == self._cycle["repeat"]:
            wait, warmup = self._cycle["wait"], self._cycle["warmup"]
            _log.warning(
                "callback profile: the run ended before its step %d, from which it records; type "
                "callback.profile.wait=0 or train longer", 2 + wait + warmup,
            )  # fmt: skip

"""Ctrl-C: the first finishes the step and saves, the second exits at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TORCHRUN_REPEATS_S = 1.0


class Interrupt:
    """While entered, SIGINT and SIGTERM ask for a clean end instead of ending the program.

    Attributes:
        requested: Whether a signal came.
        exit_code: What the program should exit with: 130 for SIGINT, 143 for SIGTERM.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.requested = False
        self.exit_code = 128 + signal.SIGINT
        self._speaks = speaks
        self._first_s = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        # Handlers can be set in the main thread alone; a job that a sweep runs in another
        # thread goes without.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self.exit_code = True, 128 + number
            self._first_s = time.monotonic()
            self._say("stopping after this step; once more to stop at once")
            return
        # torchrun passes on the signal that the terminal has already given to every process.
        repeated = time.monotonic() - self._first_s < _TORCHRUN_REPEATS_S
        if "TORCHELASTIC_RUN_ID" in os.environ and repeated:
            return
        self._say("stopped at once; what came after the last checkpoint is lost")
        os._exit(128 + number)

    def _say(self, text: str) -> None:
        if not self._speaks:
            return
        # os.write: this runs between any two instructions, also within a print. The first
        # bytes show the cursor again, which a progress bar hides.
        start = "\x1b[?25h\n" if sys.stderr.isatty() else ""
        try:
            os.write(2, f"{start}{text}\n".encode())
        except OSError:
            pass

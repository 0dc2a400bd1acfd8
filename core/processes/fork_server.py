"""Keep multiprocessing's fork server alive when SIGTERM reaches every process of a job.

The fork server imports this module before it forks. Its children still end by SIGTERM, unless they
set a handler.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_server = os.getpid()


def _end_children_only(number: int, frame: Any) -> None:
    if os.getpid() != _server:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


signal.signal(signal.SIGTERM, _end_children_only)

"""The server that worker processes are forked from, for tests that want one of their own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing import forkserver

import pytest


@pytest.fixture
def no_server():
    """No server runs before, none after."""
    _end()
    yield
    _end()


def _end() -> None:
    server = vars(forkserver._forkserver)["_forkserver_pid"]
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        forkserver._forkserver._stop()

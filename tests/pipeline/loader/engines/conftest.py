"""The server that worker processes are forked from, for tests that want one of their own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing import forkserver, process

import pytest

from penstock.core import processes
from tests.laws.conftest import packed, photos  # noqa: F401


@pytest.fixture
def no_server(monkeypatch):
    """No server runs before, none after; and what other tests have started counts for nothing."""
    _end()
    monkeypatch.setattr(processes, "_own_server", None)
    monkeypatch.setattr(process, "_children", set())
    yield
    _end()


def _end() -> None:
    server = vars(forkserver._forkserver)["_forkserver_pid"]
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        forkserver._forkserver._stop()

"""The server that worker processes are forked from is ended where nobody needs it, only there."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing import forkserver

import psutil
import pytest

from pipeline.loader.starting import end_unused_server, preload
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader


@pytest.fixture(autouse=True)
def no_server():
    """No server runs before, none after."""
    _end()
    yield
    _end()


def _end() -> None:
    if _server() is not None:
        with suppress(ProcessLookupError):
            os.kill(_server(), signal.SIGKILL)
        forkserver._forkserver._stop()


def _server() -> int | None:
    return vars(forkserver._forkserver)["_forkserver_pid"]


def test_a_server_of_ours_is_ended():
    preload("forkserver")
    server = _server()
    end_unused_server()
    assert _server() is None and not psutil.pid_exists(server)


def test_a_server_of_others_is_left_alone():
    forkserver.ensure_running()
    server = _server()
    end_unused_server()
    assert _server() == server and psutil.pid_exists(server)


def test_a_copy_of_the_process_leaves_the_server_alone():
    preload("forkserver")
    copy = multiprocessing.get_context("fork").Process(target=end_unused_server)
    copy.start()
    copy.join(60)
    assert copy.exitcode == 0
    assert psutil.Process(_server()).status() != psutil.STATUS_ZOMBIE


class _AmidStarting(FakeDataset):
    """When it is sent to a worker, somebody has no need of the server any more."""

    def __getstate__(self):
        server = _server()
        end_unused_server()
        assert _server() == server
        return self.__dict__


def test_a_server_that_is_about_to_start_workers_of_torch_is_left_alone():
    preload("forkserver")
    settings = {"engine": "torch", "num_workers": 1, "multiprocessing_context": "forkserver"}
    with make_loader(_AmidStarting(16), **settings) as loader:
        assert len(digests(loader)) == 2

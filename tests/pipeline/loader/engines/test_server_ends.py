"""The server that worker processes are forked from is ended where nobody needs it, only there."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

import psutil
import pytest

from penstock.core.processes import end_unused_server, start_server

pytestmark = pytest.mark.usefixtures("no_server")


def _server() -> int | None:
    return vars(forkserver._forkserver)["_forkserver_pid"]


def test_a_server_of_ours_is_ended():
    start_server("forkserver")
    server = _server()
    end_unused_server()
    assert _server() is None and not psutil.pid_exists(server)


def test_a_server_of_others_is_left_alone():
    forkserver.ensure_running()
    server = _server()
    end_unused_server()
    assert _server() == server and psutil.pid_exists(server)


def test_a_copy_of_the_process_leaves_the_server_alone():
    start_server("forkserver")
    copy = multiprocessing.get_context("fork").Process(target=end_unused_server)
    copy.start()
    copy.join(120)
    assert copy.exitcode == 0
    assert psutil.Process(_server()).status() != psutil.STATUS_ZOMBIE

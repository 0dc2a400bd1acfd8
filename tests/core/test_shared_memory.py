"""Memory and flags that all processes of a loader see, and what is left of them."""

import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.shared_memory import SharedArea


def _inode(descriptor):
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def test_the_descriptor_of_an_area_is_given_back_with_it():
    area = SharedArea(9)
    again = pickle.loads(pickle.dumps(area))
    descriptor = area.descriptor
    inode = _inode(descriptor)
    assert inode is not None
    del area
    assert _inode(descriptor) == inode, "it is in use"
    del again
    assert _inode(descriptor) != inode


def test_an_area_pickles_as_where_it_is_and_ends_with_its_maker():
    area = SharedArea(1 << 20)
    area.memory[:3] = (1, 2, 3)
    pickled = pickle.dumps(area)
    assert len(pickled) < 500
    code = (
        "import pickle, sys; area = pickle.loads(sys.stdin.buffer.read());"
        "print(area.memory[:3].tolist()); area.memory[5] = 7"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True)
    assert done.stdout == b"[1, 2, 3]\n", done.stderr
    assert area.memory[5] == 7
    del area
    with pytest.raises(RuntimeError, match="the process that made it"):
        pickle.loads(pickled)


def test_parts_are_written_one_behind_the_other_however_many():
    area = SharedArea(1 << 14)
    for count in (3, 200):
        parts = [bytes([n]) * 7 for n in range(count)]
        area.write(parts, 10)
        assert area.memory[10 : 10 + 7 * count].tobytes() == b"".join(parts)
        assert not area.memory[:10].any()


KILLED = """
import time
from penstock.core.shared_memory import SharedArea
area = SharedArea(1 << 20)
area.memory[:] = 1
print("ready", flush=True)
time.sleep(60)
"""


def _shared_files(pid):
    """The files of shared memory that a process has mapped or open; others have theirs there."""
    process = Path(f"/proc/{pid}")
    places = [process.joinpath("maps").read_text(), *map(os.readlink, process.glob("fd/*"))]
    return re.findall(r"^(?:.* )?(/dev/shm/.*)$", "\n".join(places), re.MULTILINE)


def test_nothing_is_left_behind_by_sigkill(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        shared = _shared_files(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list(tmp_path.iterdir())
    assert not list(filter(os.path.exists, shared))

"""Runs what the library must not hang or crash in: a process of its own, with an alarm.

HDF5 2.0 loops for ever, holding Python's lock, where a collection of its global heap has a free
object of no bytes, as a page of zeros does. So indexing, which reads whatever the file says, runs
in a child process; and before values of any length are read, their collection is checked.
"""

from __future__ import annotations

import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from penstock.datasets.files.access import SharedFile
from penstock.datasets.storages.hdf5.objects import Damaged

DEADLINE_S = 60
_CODE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    f"from {__name__} import serve; serve()"
)
_COLLECTION = struct.Struct("<4sB3xQ")  # signature, version, size
_OBJECT = struct.Struct("<HH4xQ")  # number, references, size
_READ_BYTES = 1 << 16
_deadline_s = 0  # of a call of the library; 0 where nobody waits with an alarm


def run_guarded(call: Callable[[], Any], *, where: str) -> Any:
    """Call something that can be pickled in a process of its own, and give what it gives.

    Raises:
        ValueError: It raised that, or the library was lost or ended its process.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=pickle.dumps(sys.path) + pickle.dumps((DEADLINE_S, call)),
        capture_output=True,
    )
    if done.returncode == -signal.SIGALRM:
        raise ValueError(
            f"{where}: damaged: the library was lost in it for {DEADLINE_S} s; copy it again"
        )
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise ValueError(
            f"{where}: damaged: the library did not survive it ({name}); copy it again"
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
        raise RuntimeError(f"{where}: the process that looks into it failed: {lines[-1]}")
    message, result = pickle.loads(done.stdout)
    if message is not None:
        raise ValueError(message)
    return result


def serve() -> None:
    """Run what standard input says, and write the message of a ValueError, and the result."""
    global _deadline_s
    _deadline_s, call = pickle.load(sys.stdin.buffer)
    alive()
    message = result = None
    try:
        result = call()
    except ValueError as error:
        message = str(error)
    signal.alarm(0)
    sys.stdout.buffer.write(pickle.dumps((message, result)))


def alive() -> None:
    """Put off the alarm, where there is one."""
    if _deadline_s:
        signal.alarm(_deadline_s)


def check_collection(file: SharedFile, start: int) -> None:
    """Walk through a collection of the global heap (HDF5 file format, section III.E).

    Raises:
        Damaged: It is none, or the library would not come out of it.
    """
    signature, version, size_bytes = _COLLECTION.unpack(file.read(start, _COLLECTION.size))
    if signature != b"GCOL" or version != 1:
        raise Damaged("the place of a value holds something else")
    content: Any = file.read(start, size_bytes) if size_bytes <= _READ_BYTES else b""
    at = _COLLECTION.size
    while at + _OBJECT.size <= size_bytes:
        header = content[at : at + _OBJECT.size] or file.read(start + at, _OBJECT.size)
        number, _, object_bytes = _OBJECT.unpack(header)
        if number == 0:
            # Free space, whose size counts its header.
            if object_bytes < _OBJECT.size or object_bytes > size_bytes - at:
                raise Damaged("the free space of a collection of values is wrong")
            at += object_bytes
            continue
        if object_bytes > size_bytes - at - _OBJECT.size:
            raise Damaged("a value is larger than the collection that holds it")
        at += _OBJECT.size + -(-object_bytes // 8) * 8

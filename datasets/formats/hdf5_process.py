"""Asks `hdf5_scan` what lies where in HDF5 files, in a process that cannot take this one along."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEADLINE_S = 60
_ROOT = Path(__file__).resolve().parents[2]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from datasets.formats.hdf5_scan import serve; serve(int(sys.argv[2]))"
)


class ScanError(Exception):
    """A file cannot be used; the message is the cause and, where there is one, the remedy."""


class Scanner:
    """The process that looks through files; it starts with the first and ends with the last.

    Args:
        deadline_s: How long the library may be busy without coming forward; None: `DEADLINE_S`.
    """

    def __init__(self, deadline_s: int | None = None) -> None:
        self._deadline_s = DEADLINE_S if deadline_s is None else deadline_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Scanner:
        if importlib.util.find_spec("h5py") is None:
            raise ScanError("the package h5py is missing; run: pip install h5py")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # it waits for the next file, or is in one that nobody wants
            self._end(self._process)

    def scan(
        self, path: str, group: str, fields: list[str] | None
    ) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """What is in a file, object by object; see `hdf5_scan` for the messages.

        Args:
            path: The file.
            group: The group in it that holds the data; empty for the file's own.
            fields: Paths of datasets below the group, or below that of a sample; None: all.

        Yields:
            A message, and the places that belong to it, int64 [n, 3].

        Raises:
            ScanError: It is damaged, or holds what is not read.
        """
        return self._ask({"look": True, "path": path, "group": group, "fields": fields})

    def groups(self, path: str, group: str) -> list[str]:
        """Names of the first groups in a group of a file.

        Raises:
            ScanError: It cannot be opened.
        """
        answers = self._ask({"look": False, "path": path, "group": group})
        return [name for message, _ in answers for name in message["names"]]

    def _ask(self, request: dict[str, Any]) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            while True:
                message, places = self._receive(process.stdout)
                if message["kind"] == "done":
                    return
                if message["kind"] == "refused":
                    raise ScanError(message["cause"])
                if message["kind"] == "damaged":
                    raise ScanError(f"damaged or no HDF5 file ({message['cause']}); copy it again")
                yield message, places
        except (EOFError, BrokenPipeError):
            raise ScanError(self._why_it_ended(process)) from None

    def _start(self) -> subprocess.Popen[bytes]:
        # One thread, and no code but the library's own: filters are not loaded from a path.
        quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(_ROOT), str(self._deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **quiet},
        )
        return self._process

    def _receive(self, stream: Any) -> tuple[dict[str, Any], NDArray[np.int64]]:
        sizes = np.frombuffer(_exactly(stream, 8), "<u4").tolist()
        message: dict[str, Any] = json.loads(_exactly(stream, sizes[0]))
        places = np.frombuffer(_exactly(stream, sizes[1]), np.int64).reshape(-1, 3)
        return message, places

    def _why_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        code = self._end(process)
        if code == -signal.SIGALRM:
            return f"damaged: the library was lost in it for {self._deadline_s} s; copy it again"
        if code < 0:
            name = signal.Signals(-code).name
            return f"damaged: the library did not survive it ({name}); copy it again"
        return f"the process that looks at it ended with code {code}; is h5py whole?"

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _exactly(stream: Any, size_bytes: int) -> bytes:
    value: bytes = stream.read(size_bytes)
    if len(value) < size_bytes:
        raise EOFError
    return value

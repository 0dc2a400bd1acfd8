"""Inherited objects that a forked process must neither use nor close."""

from __future__ import annotations

import ctypes


def leave_to_parent(inherited: object) -> None:
    """Keep an inherited object until this process ends, and skip its finalizers.

    A collected generator runs its ``finally`` blocks, which end the parent's workers. A collected
    client says goodbye to its server over the parent's socket.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))

"""Objects that a forked process inherits: it uses none of them and closes none of them."""

from __future__ import annotations

import ctypes


def leave_to_parent(inherited: object) -> None:
    """Keep an inherited object until this process ends, and skip its finalizers.

    A generator that is collected runs its ``finally`` blocks, which end workers of the parent. A
    collected client of a server says goodbye over a socket that the parent uses.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))

"""How many cores this process may use."""

from __future__ import annotations

import os

_MOST_WORKERS = 32
"""More workers than this are a choice: each holds batches in memory."""


def usable_cores() -> int:
    """Count the cores that this process may run on: its affinity, within its container's quota."""
    import loky

    cores: int = loky.cpu_count()
    return cores


def default_workers() -> int:
    """Count workers for ``loader.num_workers=auto``: this rank's share of the cores, at most 32."""
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(usable_cores() // ranks, _MOST_WORKERS))

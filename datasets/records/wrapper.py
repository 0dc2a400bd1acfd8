"""The base of storages that wrap another storage."""

from __future__ import annotations

from typing import Any

from penstock.core.contracts import Storage


class Wrapper(Storage):
    """A storage over `base` with its name and state."""

    def __init__(self, base: Storage) -> None:
        self.base = base
        self.index = base.index

    def __str__(self) -> str:
        return str(self.base)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Return whether the base is remote."""
        return self.base.is_remote

    def state(self) -> Any:
        """Return the state of the base."""
        return self.base.state()

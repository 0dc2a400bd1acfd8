"""What every storage with an index in the cache does alike: its name, its length, its recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from datasets.index import Index


class IndexedStorage(ABC):
    """A storage at one path, whose length and fingerprint are those of its index.

    Attributes:
        name: The name that it is registered by.
        path: Where its data lies, absolute.
    """

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} {self.path}"

    def __len__(self) -> int:
        return len(self.index)

    @property
    @abstractmethod
    def index(self) -> Index:
        """Key and label of every record, and what else is known of it."""

    def fingerprint(self) -> str:
        """Hash of keys and labels, and of the data's sizes or content."""
        return self.index.fingerprint()

    def _recipe(self, *without: str) -> dict[str, Any]:
        """What an index is made from: the arguments, but those that only say how records are read.

        Arguments are the attributes whose names do not begin with ``_``.
        """
        arguments = {n: v for n, v in vars(self).items() if n[0] != "_" and n not in without}
        return {"storage": self.name, **arguments}

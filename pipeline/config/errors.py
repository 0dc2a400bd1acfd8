"""Errors of a config: one line for each mistake, all of them at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Attributes:
        key: The full key, such as ``dataset.storage.path``.
        message: What was given, what is accepted and what to type, in one line.
    """

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigError(ValueError):
    """A config with mistakes; its text has a line for each of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        title = (
            "1 error in the configuration:"
            if count == 1
            else (f"{count} errors in the configuration:")
        )
        super().__init__("\n".join([title, *(f"  {problem}" for problem in self.problems)]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return ConfigError, (self.problems,)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Find the one of `names` that `name` was probably meant to be, or None."""
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def listing(names: Iterable[str], limit: int = 12) -> str:
    """List names in one line, cut after `limit` of them."""
    known = list(names)
    if len(known) > limit:
        return ", ".join(known[:limit]) + f", ... ({len(known)} in all)"
    return ", ".join(known)


def is_first_rank() -> bool:
    """Tell whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"

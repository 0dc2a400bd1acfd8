"""Errors of a config: one line for each mistake, all of them at once."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from penstock.core.user_errors import Problem, listing, nearest, nearest_path
from penstock.datasets.files.passwords import masked

__all__ = ["ConfigError", "Problem", "listing", "nearest", "nearest_path", "tell"]


class ConfigError(ValueError):
    """A config with mistakes; its text has a line for each of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        title = f"{count} error{'s' * (count != 1)} in the configuration:"
        lines = [f"  {masked(str(problem))}" for problem in self.problems]
        super().__init__("\n".join([title, *lines]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return ConfigError, (self.problems,)


def type_nearest(name: str, names: Iterable[str], typed: str = "{}") -> str:
    """Return what to type with the closest of `names`, as the end of an error line, or nothing."""
    near = nearest(name, names)
    return "" if near is None else f"; type {typed.format(near)}"


def is_below(key: str, others: Iterable[str]) -> bool:
    """Return whether a key is one of `others`, or lies inside of one."""
    return any(f"{key}.".startswith(f"{other}.") for other in others)


def is_first_rank() -> bool:
    """Tell whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def tell(text: str, *, of_all_ranks: bool = False) -> None:
    """Print an error once; under torchrun, as the cause at the end of torchrun's summary.

    torchrun prints its summary after all output of the ranks.

    Args:
        text: The error.
        of_all_ranks: Every rank has found the error; only the first rank prints it.
    """
    if of_all_ranks and not is_first_rank():
        leave_it_to_another()
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return
    if not (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        print(text, file=sys.stderr)
        return
    more = {"py_callstack": text, "timestamp": str(int(time.time()))}
    Path(file).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}))


def leave_it_to_another() -> None:
    """Wait, under torchrun, to be ended: the rank that ends first is the cause in its summary."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(3)

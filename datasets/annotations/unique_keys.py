"""Keys differ: a name for a record names one."""

from __future__ import annotations

from collections.abc import Sequence


def refuse_twice(keys: Sequence[bytes], *, where: str) -> None:
    """Raise ValueError if a key stands twice."""
    if len(set(keys)) == len(keys):
        return
    seen: dict[bytes, int] = {}
    for row, key in enumerate(keys):
        if (first := seen.setdefault(key, row)) != row:
            raise ValueError(
                f"{where}: key {key.decode(errors='backslashreplace')!r} stands twice, in the "
                f"records {first} and {row}; take a column whose values differ"
            )

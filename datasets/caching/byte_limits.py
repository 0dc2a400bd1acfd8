"""Amounts of memory and disk as people write them: ``4GB``, ``500 MB``, ``40%``, a number."""

from __future__ import annotations

import re

_UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B|%)\s*", re.IGNORECASE)


def parse_bytes(given: int | str, *, whole: int | None = None) -> int:
    """A number of bytes.

    Args:
        given: Bytes, or a number with B, KB, MB, GB or TB (powers of 1,000), KiB to TiB (of
            1,024), or, where there is a whole, %.
        whole: What a share is of.

    Raises:
        ValueError: It is none of these, or nothing.
    """
    size_bytes = 0.0
    if isinstance(given, int) and not isinstance(given, bool):
        size_bytes = given
    elif isinstance(given, str) and given.strip().isdigit():
        size_bytes = int(given)
    elif isinstance(given, str) and (found := _AMOUNT.fullmatch(given)):
        number, unit = float(found[1]), found[2].upper()
        if unit != "%":
            size_bytes = number * (1024 if "I" in unit else 1000) ** _UNITS[unit.replace("I", "")]
        elif whole is not None and number <= 100:
            size_bytes = max(number / 100 * whole, 1 if number else 0)
    if size_bytes < 1:
        share = ", or a share of the available memory such as 40%" if whole is not None else ""
        raise ValueError(
            f"dataset.cache.max_bytes: {given!r} given, expected an amount such as 4GB or "
            f"500MB{share}"
        )
    return int(size_bytes)

"""JSON that strangers wrote: the same value, or the same error, whoever parses it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: It is damaged, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        pass
    # What is too deep depends on how deep the caller stands already: in a new thread nobody does.
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(json.loads, text).result()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

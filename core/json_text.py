"""Parsing of foreign JSON, with the same result at every stack depth."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise ValueError if it is damaged or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        pass
    # The limit includes the caller's stack, so parse again on the empty stack of a new thread.
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(json.loads, text).result()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

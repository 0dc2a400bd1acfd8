"""Where the steps of an augmentation stack stand, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.errors import Problem, listing, nearest
from pipeline.config.values import given


def wrong_order(steps: Mapping[str, Any], key: str) -> Iterator[Problem]:
    """What is wrong with the places that steps are given by ``_after_``.

    Args:
        steps: Nodes by name.
        key: The key of the stack.
    """
    for name, node in steps.items():
        after = node.get("_after_") if isinstance(node, dict) else None
        if after is not None and (after not in steps or after == name):
            others = [other for other in steps if other != name]
            near = nearest(str(after), others)
            remedy = f"; type {key}.{name}._after_={near}" if near else ""
            yield Problem(
                f"{key}.{name}._after_",
                f"no step named {given(after)}, the others are {listing(others)}{remedy}",
            )

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
    afters = {
        name: node["_after_"]
        for name, node in steps.items()
        if isinstance(node, dict) and node.get("_after_") is not None
    }
    for name, after in afters.items():
        circle = _circle(name, afters)
        if not isinstance(after, str) or after not in steps or after == name:
            others = [other for other in steps if other != name]
            near = nearest(str(after), others)
            remedy = f"; type {key}.{name}._after_={near}" if near else ""
            yield Problem(
                f"{key}.{name}._after_",
                f"no step named {given(after)}, the others are {listing(others)}{remedy}",
            )
        elif circle and name == min(circle):  # said once
            yield Problem(
                f"{key}.{name}._after_",
                f"the steps {', '.join(circle)} wait for one another; type ~{key}.{name}._after_",
            )


def _circle(name: str, afters: Mapping[str, Any]) -> list[str]:
    """Steps from one to the one that comes before it, where it comes before itself."""
    circle = [name]
    while (after := afters.get(circle[-1])) != name:
        if not isinstance(after, str) or after in circle:
            return []
        circle.append(after)
    return circle

"""Whether what a component made has all that its group needs."""

from __future__ import annotations

from typing import Any

_PROTOCOLS = {
    "decode": "Decoder",
    "sampler": "Sampler",
    "collate": "Collate",
    "task": "Task",
    "logger": "Logger",
}
_SPECIAL = ("__call__", "__len__")


def check_complete(made: Any, target_name: str) -> None:
    """Refuse what lacks something that its group needs, before anything is done with it.

    Args:
        made: What the component made.
        target_name: The component, ``group/name``.

    Raises:
        ValueError: It lacks something.
    """
    from datasets import protocols

    group = target_name.partition("/")[0]
    if group not in _PROTOCOLS:
        return
    protocol = getattr(protocols, _PROTOCOLS[group])
    needed = [name for name in vars(protocol) if name in _SPECIAL or not name.startswith("_")]
    lacking = [name for name in needed if not hasattr(made, name)]
    if lacking:
        file = protocol.__module__.replace(".", "/")
        raise ValueError(
            f"{target_name} ({type(made).__qualname__}) has no {', '.join(lacking)}; give it what "
            f"a {group} has, {', '.join(needed)}: see {protocol.__name__} in {file}.py"
        )

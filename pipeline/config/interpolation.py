"""Interpolations: the plain values of a config, and why one does not resolve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.core.user_errors import Problem, nearest

UNRESOLVED = type("UNRESOLVED", (), {})
"""Stands for a value whose interpolation could not be resolved, which has been reported."""
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MISSING = re.compile(r"(?:Interpolation key|Environment variable) '(.+?)' not found")


def plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """Resolve a config to dicts, lists and scalars.

    Returns:
        The plain config, with `UNRESOLVED` where an interpolation fails, and a problem for each
        failure that is not reported at the key which it refers to.
    """
    raw = OmegaConf.to_container(config, resolve=False)
    problems: list[Problem] = []
    assert isinstance(raw, dict)
    return _plain(config, raw, "", list(_keys(raw)), problems), problems


def _plain(node: Any, raw: Any, key: str, known: list[str], problems: list[Problem]) -> Any:
    if isinstance(node, DictConfig):
        return {
            str(name): _child(node, raw, name, f"{key}.{name!s}".lstrip("."), known, problems)
            for name in node
        }
    if isinstance(node, ListConfig):
        return [_child(node, raw, n, f"{key}.{n}", known, problems) for n in range(len(node))]
    return node


def _child(
    node: Any, raw: Any, name: Any, key: str, known: list[str], problems: list[Problem]
) -> Any:
    if OmegaConf.is_missing(node, name):
        return "???"
    inner = raw[name] if isinstance(raw, (dict, list)) else None
    if not OmegaConf.is_interpolation(node, name):
        return _plain(node[name], inner, key, known, problems)
    text = str(inner)
    if "${hydra:" in text:
        problems.append(Problem(key, f"{text} cannot be used: runs do not know Hydra's config"))
        return UNRESOLVED
    try:
        return _plain(node[name], inner, key, known, problems)
    except (OmegaConfBaseException, RecursionError) as error:
        if (why := _why(text, error, known)) is not None:
            problems.append(Problem(key, f"{text} cannot be resolved: {why}"))
        return UNRESOLVED


def _why(text: str, error: BaseException, known: list[str]) -> str | None:
    """Explain an error; None if the key that the text refers to is reported itself."""
    said = (
        "it refers to itself" if isinstance(error, RecursionError) else str(error).splitlines()[0]
    )
    if (missing := _MISSING.search(said)) is None:
        return "it refers to itself" if isinstance(error, RecursionError) else said
    near = nearest(missing[1], known)
    return (said + (f"; did you mean ${{{near}}}?" if near else "")) * (missing[1] in text) or None


def _keys(raw: Any, prefix: str = "") -> Iterator[str]:
    for name, value in raw.items() if isinstance(raw, dict) else ():
        yield f"{prefix}{name}"
        yield from _keys(value, f"{prefix}{name}.")


def referred_keys(config: DictConfig) -> frozenset[str]:
    """List the keys that interpolations refer to, and their parents.

    A relative one, such as ``${.size}``, counts where variables may stand: the top and `augment`.
    """
    text = str(OmegaConf.to_container(config, resolve=False))
    found: set[str] = set()
    for key in _REFERENCE.findall(text):
        names = key.strip(".").split(".")
        if key[0] == ".":
            found |= {names[0], f"augment.{names[0]}"}
        found |= {".".join(names[: n + 1]) for n in range(len(names))}
    return frozenset(found)


def unresolved_keys(value: Any, key: str = "") -> Iterator[str]:
    """Yield the full keys of the values that could not be resolved."""
    if value is UNRESOLVED:
        yield key
    elif isinstance(value, (dict, list)):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from unresolved_keys(item, f"{key}.{name}" if key else f"{name}")


def is_unresolved(value: Any) -> bool:
    """Return whether a value holds one that could not be resolved."""
    return any(True for _ in unresolved_keys(value))

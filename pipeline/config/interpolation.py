"""Interpolations: the plain values of a config, and why one does not resolve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.pipeline.config.errors import Problem, nearest

UNRESOLVED = type("UNRESOLVED", (), {})
"""Stands for a value whose interpolation could not be resolved, which has been reported."""
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_UNSET = re.compile(r"Environment variable '(.+?)' not found")
_MISSING = re.compile(r"Interpolation key '(.+?)' not found")
_CIRCLE = re.compile("Recursive interpolation|Interpolation to parent node")


def plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """Resolve a config to dicts, lists and scalars.

    Returns:
        The plain config, with `UNRESOLVED` where an interpolation does not resolve, and a
        problem for each that is not reported at the key which it refers to.
    """
    problems: list[Problem] = []
    found = _plain(config, "", config, problems)
    assert isinstance(found, dict)
    return found, problems


def referred_keys(config: DictConfig) -> frozenset[str]:
    """List the keys that interpolations refer to, and those that these lie below.

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


def _plain(node: Any, key: str, root: DictConfig, problems: list[Problem]) -> Any:
    if isinstance(node, DictConfig | ListConfig) and (node._is_none() or node._is_missing()):
        return None if node._is_none() else "???"
    if isinstance(node, DictConfig):
        names = [(name, f"{key}.{name!s}" if key else f"{name!s}") for name in node]
        return {str(name): _child(node, name, full, root, problems) for name, full in names}
    if isinstance(node, ListConfig):
        return [_child(node, i, f"{key}.{i}", root, problems) for i in range(len(node))]
    return node


def _child(
    node: DictConfig | ListConfig, name: Any, key: str, root: DictConfig, problems: list[Problem]
) -> Any:
    if OmegaConf.is_missing(node, name):
        return "???"
    raw = node._get_node(name)
    if OmegaConf.is_interpolation(node, name):
        text = str(raw._value())  # type: ignore[union-attr]
        if "${hydra:" in text:
            problems.append(Problem(key, f"{text} cannot be used: runs do not know Hydra's config"))
            return UNRESOLVED
        try:
            return _plain(node[name], key, root, problems)
        except (OmegaConfBaseException, RecursionError) as error:
            why = _why(text, error, root)
            if why is not None:
                problems.append(Problem(key, f"{text} cannot be resolved: {why}"))
            return UNRESOLVED
    return _plain(node[name], key, root, problems)


def _why(text: str, error: BaseException, root: DictConfig) -> str | None:
    """Tell the reason and what to do; None where a key that it refers to is reported itself."""
    said = str(error).splitlines()[0]
    if isinstance(error, RecursionError) or _CIRCLE.search(said):
        return "it refers to itself, or to a key that does; give it a value"
    if (unset := _UNSET.search(said)) is not None:
        remedy = f"set it, or give a default: ${{oc.env:{unset[1]},<default>}}"
        return f"the variable {unset[1]} is not set; {remedy}" if unset[1] in text else None
    if (missing := _MISSING.search(said)) is not None:
        near = nearest(missing[1], _keys(root))
        hint = f"; did you mean ${{{near}}}?" if near else ""
        return f"no key {missing[1]!r}{hint}" if missing[1] in text else None
    return said


def _keys(node: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for name in node:
        key = f"{prefix}{name!s}"
        found.append(key)
        child = node._get_node(name)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing() and (
            not child._is_interpolation()
        ):  # fmt: skip
            found.extend(_keys(child, f"{key}."))
    return found


def is_unresolved(value: Any) -> bool:
    """Tell whether a value could not be resolved, or holds one that could not."""
    if isinstance(value, dict):
        return any(map(is_unresolved, value.values()))
    if isinstance(value, list):
        return any(map(is_unresolved, value))
    return value is UNRESOLVED


def unresolved_keys(value: Any, key: str = "") -> Iterator[str]:
    """Yield the full keys of the values that could not be resolved."""
    if value is UNRESOLVED:
        yield key
    elif isinstance(value, (dict, list)):
        named = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in named:
            yield from unresolved_keys(item, f"{key}.{name}" if key else f"{name}")

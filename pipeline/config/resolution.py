"""From OmegaConf to plain containers, with every interpolation resolved or reported."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.errors import Problem, nearest
from pipeline.config.values import UNRESOLVED

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """The config as dicts, lists and scalars.

    Returns:
        The plain config, with `UNRESOLVED` where an interpolation does not resolve, and a
        problem for each of these.
    """
    problems: list[Problem] = []
    found = _plain(config, "", config, problems)
    assert isinstance(found, dict)
    return found, problems


def referred_names(config: DictConfig) -> frozenset[str]:
    """Last names of what interpolations refer to: ``size`` of ``${augment.size}``."""
    text = str(OmegaConf.to_container(config, resolve=False))
    return frozenset(key.rpartition(".")[2] for key in _REFERENCE.findall(text))


def _plain(node: Any, key: str, root: DictConfig, problems: list[Problem]) -> Any:
    if isinstance(node, DictConfig):
        if node._is_none() or node._is_missing():
            return None if node._is_none() else "???"
        names = [(name, f"{key}.{name!s}" if key else f"{name!s}") for name in node]
        return {str(name): _child(node, name, full, root, problems) for name, full in names}
    if isinstance(node, ListConfig):
        if node._is_none() or node._is_missing():
            return None if node._is_none() else "???"
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
            problems.append(Problem(key, f"{text} cannot be resolved{_why(text, error, root)}"))
            return UNRESOLVED
    return _plain(node[name], key, root, problems)


def _why(text: str, error: BaseException, root: DictConfig) -> str:
    """The reason, and the nearest key that there is."""
    if isinstance(error, RecursionError):
        return ": it leads back to itself"
    inner = text[2:-1] if text.startswith("${") and text.endswith("}") else ""
    if inner and ":" not in inner:
        near = nearest(inner, _keys(root))
        return f": no key {inner!r}" + (f"; did you mean ${{{near}}}?" if near else "")
    return f": {str(error).splitlines()[0]}"


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

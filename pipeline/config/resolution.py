"""From OmegaConf to plain containers, with every interpolation resolved or reported."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.errors import Problem, nearest
from pipeline.config.values import UNRESOLVED

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_UNSET = re.compile(r"Environment variable '(.+?)' not found")


def plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """The config as dicts, lists and scalars.

    Returns:
        The plain config, with `UNRESOLVED` where an interpolation does not resolve, and a
        problem for each that is not reported at the key which it refers to.
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
            why = _why(key, text, error, root)
            if why is not None:
                problems.append(Problem(key, f"{text} cannot be resolved: {why}"))
            return UNRESOLVED
    return _plain(node[name], key, root, problems)


def _why(key: str, text: str, error: BaseException, root: DictConfig) -> str | None:
    """The reason and what to do; None where a key that it refers to is reported itself."""
    if isinstance(error, RecursionError):
        return "it leads back to itself"
    unset = _UNSET.search(str(error))
    if unset is not None:
        return (
            f"the variable {unset[1]} is not set; set it, or give a default: "
            f"${{oc.env:{unset[1]},<default>}}"
        )
    names = [name for name in _REFERENCE.findall(text) if not name.startswith(".")]
    for name in names:
        if _node_at(name, root) is None:
            near = nearest(name, _keys(root))
            return f"no key {name!r}" + (f"; did you mean ${{{near}}}?" if near else "")
    if _leads_to(key, text, root, set()):
        return "it refers to itself; give it a value"
    if any(_references_at(name, root) for name in names):
        return None
    return str(error).splitlines()[0]


def _leads_to(key: str, text: str, root: DictConfig, seen: set[str]) -> bool:
    """Whether references in a text lead to a key, or to what holds it."""
    for name in _REFERENCE.findall(text):
        if f"{key}.".startswith(f"{name}."):
            return True
        if name not in seen:
            seen.add(name)
            if _leads_to(key, _references_at(name, root), root, seen):
                return True
    return False


def _references_at(key: str, root: DictConfig) -> str:
    """The text of an interpolation at a key; none where there is a value."""
    node = _node_at(key, root)
    return str(node._value()) if node is not None and node._is_interpolation() else ""


def _node_at(key: str, root: DictConfig) -> Node | None:
    """What stands at a key, unresolved; None where there is nothing."""
    node: Any = root
    for name in key.split("."):
        if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
            return None
        if node._is_interpolation():  # what it refers to is known where it is resolved
            return node
        node = node._get_node(name)
    return node


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

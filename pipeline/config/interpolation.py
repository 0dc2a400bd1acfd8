"""Interpolations: the plain values of a config, and why one does not resolve."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MISSING = re.compile(r"(?:Interpolation key|Environment variable) '(.+?)' not found")


def plain(config: DictConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """Resolve a config to dicts, lists and scalars.

    Returns:
        The plain config, with null where an interpolation fails, and why each of these failed by
        its full key; empty if the key that it refers to failed itself.
    """
    raw = OmegaConf.to_container(config, resolve=False)
    failures: dict[str, str] = {}

    def resolved(node: Any, name: Any, text: Any, key: str) -> Any:
        if isinstance(text, dict):
            return {str(each): resolved(node[name], each, inner, f"{key}.{each}")
                    for each, inner in text.items()}  # fmt: skip
        if isinstance(text, list):
            return [resolved(node[name], n, inner, f"{key}.{n}") for n, inner in enumerate(text)]
        if not isinstance(text, str) or "${" not in text:
            return text
        try:
            value = node[name]
            if isinstance(value, (DictConfig, ListConfig)):
                return OmegaConf.to_container(value, resolve=True)
            return value
        except (OmegaConfBaseException, RecursionError) as error:
            failures[key] = _why(text, error)
            return None

    assert isinstance(raw, dict)
    return {str(name): resolved(config, name, raw[name], str(name)) for name in raw}, failures


def _why(text: str, error: BaseException) -> str:
    """Explain an error; nothing if the key that the text refers to is reported itself."""
    is_circle = isinstance(error, RecursionError)
    said = "it refers to itself" if is_circle else str(error).splitlines()[0]
    if missing := _MISSING.search(said):
        said = missing[0] if missing[1] in text else ""
    return said and f"{text} cannot be resolved: {said}"


def referred_keys(config: DictConfig) -> frozenset[str]:
    """List the keys that interpolations refer to, and their parents."""
    text = str(OmegaConf.to_container(config, resolve=False))
    names = [key.split(".") for key in _REFERENCE.findall(text)]
    return frozenset(".".join(each[: n + 1]) for each in names for n in range(len(each)))

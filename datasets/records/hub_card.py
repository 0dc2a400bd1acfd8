"""Read the data files that the README of a hub data set lists in its header."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_HEAD = re.compile(r"\s*---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CardConfig:
    """A data set of a repository: file patterns by split, or the folder of its files."""

    name: str
    files: dict[str, list[str]] = field(default_factory=dict)
    folder: str | None = None
    default: bool = False


def card_configs(text: str) -> list[CardConfig]:
    """Return the configurations in a README's header, or an empty list."""
    import yaml

    head = _HEAD.match(text)
    try:
        known = yaml.safe_load(head[1]) if head else None
    except yaml.YAMLError:  # not a data set card
        return []
    listed = known.get("configs") if isinstance(known, dict) else None
    if not isinstance(listed, list):
        return []
    return [_config(each) for each in listed if isinstance(each, dict)]


def _config(said: dict[str, Any]) -> CardConfig:
    name = str(said.get("config_name", "default"))
    data, folder = said.get("data_files"), said.get("data_dir")
    files: dict[str, list[str]] = {}
    for each in data if isinstance(data, list) else [data]:
        node = each if isinstance(each, dict) else {"path": each}
        split, paths = node.get("split", "train"), node.get("path")
        paths = [paths] if isinstance(paths, str) else paths or []
        files.setdefault(str(split), []).extend(map(str, paths))
    return CardConfig(
        name,
        {split: paths for split, paths in files.items() if paths},
        None if folder is None else str(folder),
        bool(said.get("default")) or name == "default",
    )

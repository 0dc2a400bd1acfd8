"""Every option and its default, in `options.txt`: a removal or a new default is a line of a diff.

``python tests/test_option_list.py`` writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from penstock.core import registry
from penstock.pipeline.commands import COMMANDS
from penstock.pipeline.config.components import register_components

ROOT = Path(__file__).resolve().parents[1]
LISTED = Path(__file__).with_name("options.txt")


def flat(node: Any, key: str = "") -> Iterator[str]:
    """Yield a line ``key: value`` for each leaf of a config."""
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield f"{key}: {node!r}"


def sections() -> Iterator[list[str]]:
    """Yield the lines of each file of `conf/`, then of each component's signature."""
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        yield [f"[{file.relative_to(ROOT)}]", *flat(yaml.safe_load(file.read_text()) or {})]
    register_components()
    for command in COMMANDS:
        import_module(f"penstock.pipeline.commands.{command}")
    for component in registry.components():
        if not component.target.__module__.startswith("penstock."):
            continue
        node: dict[str, Any] = {"(no arguments)": ""}
        if names := registry.parameters(
            component.target, registry.GROUPS[component.group].injected
        ):
            node = {p.name: "???" if p.default is p.empty else p.default for p in names}
        yield [f"[{component.target_name}]", *(f"{name}: {node[name]!r}" for name in node)]


def listing() -> str:
    return "\n".join("\n".join([*lines, ""]) for lines in sections())


def test_options_and_defaults_are_those_of_the_list():
    assert listing().splitlines() == LISTED.read_text().splitlines(), (
        f"if the change is meant: python {Path(__file__).relative_to(ROOT)}"
    )


if __name__ == "__main__":
    LISTED.write_text(listing())

"""Run the checks of the components that a config names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.core import registry
from penstock.core.user_errors import Problem
from penstock.datasets.mix import with_keys_of_source
from penstock.pipeline.config.errors import is_below
from penstock.pipeline.mixes import MIX, sources_of


def check_components(config: dict[str, Any], wrong: Collection[str]) -> list[Problem]:
    """Run each check whose component and needed keys have the right types.

    Args:
        config: The config as far as it could be checked.
        wrong: Keys that have been reported; nothing is reported at or below them.
    """
    is_mix = registry.value_at(config, "dataset._target_") == MIX
    nodes = {**config, "dataset": {"_target_": MIX}} if is_mix else config
    found = [*_problems(config, nodes, wrong)]
    if not is_mix or _is_wrong("dataset.sources", wrong):
        return found
    dataset = config["dataset"]
    wrong = {*wrong, *(problem.key for problem in found)}
    right = {
        name: source
        for name, source in dataset["sources"].items()
        if not any(_is_wrong(f"dataset.sources.{name}.{part}", wrong) for part in _PARTS)
    }
    for name, source in sources_of({**config, "dataset": {**dataset, "sources": right}}).items():
        at = f"dataset.sources.{name}"
        known = {key.removeprefix(f"{at}.") for key in wrong if key.startswith(f"{at}.")}
        found += [
            Problem(f"{at}.{problem.key}", with_keys_of_source(problem.message, name))
            for problem in _problems(source, {part: source[part] for part in _PARTS}, known)
        ]
    return found


_PARTS = ("dataset", "sampler")


def _problems(
    config: Mapping[str, Any], nodes: Mapping[str, Any], wrong: Collection[str]
) -> Iterator[Problem]:
    """Run the checks of the components in `nodes`."""
    named = {target for key, target in _targets(nodes) if not _is_wrong(key, wrong)}
    for rule, needs in registry.checks_of(named):
        if not any(_is_wrong(key, wrong) for key in needs):
            yield from (found for found in rule(config) if not _is_wrong(found.key, wrong))


def _targets(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the target of each component."""
    if isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield key, node["_target_"]
        for name, value in node.items():
            yield from _targets(value, f"{key}.{name}" if key else str(name))


def _is_wrong(key: str, wrong: Collection[str]) -> bool:
    """Return whether a reported mistake makes the value of a key unknown."""
    return is_below(key, wrong) or bool({"", f"{key}._target_"} & {*wrong})

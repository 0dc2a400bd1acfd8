"""Going on from a run by its folder: its own saved config, not a new composition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from pipeline.config.errors import ConfigError, Problem
from pipeline.config.overrides import Parsed
from pipeline.config.places import STACKS, TARGETS, top_level_keys

SAVED = "config.yaml"
RESUME, CHECKPOINT = "trainer.resume", "predict.checkpoint"


_OTHERS = {RESUME: "a checkpoint in one, or auto", CHECKPOINT: "or a checkpoint"}


def saved_run(parsed: Parsed) -> Path | None:
    """The saved config that ``trainer.resume=<path>`` means, or ``predict.checkpoint=<path>``.

    Returns:
        The file; None where nothing is named so, where a checkpoint lies in no run's folder (it
        is of what is typed), or there is no run at the path: that is added to the problems.
    """
    key, path = RESUME, None
    for change in parsed.changes:
        if change.key in (RESUME, CHECKPOINT):
            key, path = change.key, change.override.value()
    if not isinstance(path, str) or (key == RESUME and path in ("auto", "None", "")):
        return None
    folder = Path(path).expanduser()
    for candidate in (folder, *folder.parents[:2]):
        if (candidate / SAVED).is_file():
            return candidate / SAVED
    if key == CHECKPOINT and folder.is_file():
        return None
    what = f"there is no {SAVED} in it" if folder.exists() else "there is no such folder"
    problem = Problem(key, f"{path!r} given, but {what}; accepts a run's folder, such as "
                      f"outputs/<date>/<time>, {_OTHERS[key]}")  # fmt: skip
    parsed.problems.append(problem)
    return None


def apply_to_saved(
    file: Path, parsed: Parsed, added: Mapping[str, Any]
) -> tuple[DictConfig, frozenset[str]]:
    """A run's own config with the given values; mistakes go to `parsed.problems`.

    Args:
        file: The saved config.
        parsed: What was typed.
        added: Keys that stand beside those of the run, which values may be given for.

    Returns:
        The config, and the variables that the run's has.
    """
    from pipeline.config.discovery import load_imports

    config = OmegaConf.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    if not isinstance(config, DictConfig):
        raise ConfigError([Problem(RESUME, f"{file} is damaged: a mapping is expected in it")])
    for choice in parsed.choices:
        parsed.problems.append(
            Problem(choice.group, f"{choice.text!r} given, but a run that is gone on with, or that "
                    f"predicts, keeps the components of its config; change single values")
        )  # fmt: skip
    variables = _variables_of(config)
    config.update(added)
    for change in parsed.changes:
        if change.key.removeprefix("augment.") in variables:
            parsed.problems.append(
                Problem(change.key, "a saved config has its variables filled in already, so this "
                        "would change nothing; change the keys that used it")
            )  # fmt: skip
        elif change.override.is_delete():
            parsed.problems.append(_delete(config, change.key))
        else:
            OmegaConf.update(config, change.key, change.override.value(), force_add=True)
    load_imports(_strings(config.get("imports")))
    parsed.problems[:] = [problem for problem in parsed.problems if problem.message]
    return config, variables


def _variables_of(config: DictConfig) -> frozenset[str]:
    """Names of what the saved config holds for interpolations, which are gone from it."""
    top = {str(name) for name in config} - set(top_level_keys())
    augment = config.get("augment")
    inner = {str(name) for name in augment} if isinstance(augment, DictConfig) else set()
    return frozenset(top | inner - {*STACKS, *TARGETS})


def _delete(config: DictConfig, key: str) -> Problem:
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if isinstance(node, DictConfig) and leaf in node:
        del node[leaf]
        return Problem(key, "")
    return Problem(key, "there is nothing of this name to take away")


def _strings(names: Iterable[object] | None) -> list[str]:
    return [str(name) for name in names or ()]

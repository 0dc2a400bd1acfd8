"""Resume a saved run, or try its model, with the overrides that were typed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from penstock.core.user_errors import Problem
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.interpolation import plain
from penstock.pipeline.config.options import STACK_OF
from penstock.pipeline.config.overrides import Typed
from penstock.pipeline.config.places import PRESETS, watching
from penstock.pipeline.config.resolve import resolve
from penstock.pipeline.config.saved import CHECKPOINTS, leaves, read_saved, variables_of
from penstock.pipeline.config.values import given

_DATA_PLACES = frozenset(
    f"dataset.{part}.{name}"
    for part in ("storage", "source")
    for name in ("path", "table", "query", "topic", "queue")
)


def resume(
    file: Path, typed: Sequence[Typed], problems: list[Problem], added: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the config of a job that resumes a run, or of a command that tries one.

    Typed values change the saved config. Typed options must equal the run's options, except the
    engine, the cache, loggers and callbacks that only watch. A command may choose other data.

    Args:
        file: The saved config.
        typed: Overrides.
        problems: Their problems.
        added: The settings of the command, by its name.

    Raises:
        ConfigError: With all mistakes.
    """
    from penstock.pipeline.config.compose import checked, set_value

    config = read_saved(file)
    saved = [str(name) for name in config.get("imports") or ()]
    variables = variables_of(config)
    values = [each for each in typed if not each.group]
    keys = [each.key for each in values]
    choices = [each for each in typed if each.group]
    if any(key in CHECKPOINTS for key in keys):  # a trained model, maybe on other data
        data = [each for each in choices if each.group.startswith("dataset")]
        problems += [
            Problem(
                each.group,
                f"{each.text!r} given, but a tried run keeps all components except "
                "its data; leave it away",
            )
            for each in choices
            if each not in data
        ]
        if data:
            _choose_data(config, data)
        if _DATA_PLACES & {*keys}:
            for name in {"val_path", "test_path"} & config["dataset"].keys():
                config["dataset"][name] = None  # parts of the run's own data
    else:
        problems += _choose_again(config, choices, values)
    config.update(added)
    for each in values:
        if each.key not in variables:
            problems += filter(None, [set_value(config, each)])
        elif OmegaConf.select(config, each.key) != each.value:
            problems.append(Problem(each.key, "a saved config holds no variables, so this changes "
                                    "nothing; change the keys that used it"))  # fmt: skip
    _refuse_untyped(saved, [str(name) for name in config.get("imports") or ()], keys)
    command = next(iter(added), None)
    return checked(config, typed, problems, command=command, variables=variables)


def _choose_again(
    config: DictConfig, choices: Sequence[Typed], values: Sequence[Typed]
) -> Iterator[Problem]:
    """Add the options that a resumed run may change; refuse others that the run does not have."""
    from penstock.pipeline.config.compose import choose, set_value

    composed, _ = choose(choices, [])
    for each in values:
        set_value(composed, each)
    typed, plainly = {each.key for each in values}, plain(composed)[0]
    resolve(plainly, typed | {each.key for each in choices})
    now, then = leaves(plainly), leaves(plain(config)[0])
    for each in choices:
        group, place = each.group, STACK_OF.get(each.group, each.key)
        nodes = {name: {"_target_": f"{group}/{name}"} for name in each.options}
        harmless = group == "logger" or watching({"callback": nodes}) == nodes
        if nodes and group in ("logger", "callback") and harmless:
            for name, node in nodes.items():
                OmegaConf.update(config, f"{group}.{name}", node, merge=True, force_add=True)
        elif group in ("loader", "dataset/cache"):
            key = "loader.engine" if group == "loader" else "dataset.cache"
            OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
        elif group in PRESETS:
            yield Problem(group, f"a resumed run keeps its preset; leave {each.text} away")
        else:
            # Values that the option lacks are defaults, but components that it lacks are others.
            others = (key for key in then if key.endswith("._target_"))
            keys = [*now, *(key for key in others if not then[key].startswith("settings/"))]
            below = [key for key in keys if f"{key}.".startswith(f"{place}.") and key not in typed]
            for key in [key for key in below if now.get(key) != then.get(key)][:1]:
                what = f"{key} would be {given(now.get(key))}, the run has {given(then.get(key))}"
                yield Problem(group, f"{what}; leave {each.text} away")


def _choose_data(config: DictConfig, choices: Sequence[Typed]) -> None:
    """Replace the data of a run, or a part of it; it is decoded as before."""
    from penstock.pipeline.config.compose import choose

    composed, _ = choose(choices, [])
    groups = [each.group for each in choices]
    run = {} if "dataset" not in groups else {**config["dataset"]}
    replaced = ["dataset", "sampler"] if "dataset" in groups else [each.key for each in choices]
    for key in replaced:
        OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
    before, now = run.get("storage") or {}, config["dataset"].get("storage") or {}
    if before.get("_target_") == now.get("_target_") and "endings" in before:
        now["endings"] = before["endings"]  # a folder of sounds
    for name in {"decode", "val_fraction"} & run.keys() & config["dataset"].keys():
        if f"dataset/{name}" not in groups:
            config["dataset"][name] = run[name]


def _refuse_untyped(saved: Sequence[str], given: Sequence[str], typed: Collection[str]) -> None:
    """Refuse to run code that a saved config alone names: it may be a stranger's.

    Raises:
        ConfigError: A module was not named by the command itself.
    """
    named = {name.rpartition("/")[2] for name in given} if "imports" in typed else set()
    if lacking := [name for name in saved if name.rpartition("/")[2] not in named]:
        what = f"the saved config imports {', '.join(lacking)}, whose code would run"
        how = f"type imports=[{','.join(saved)}] if you trust it"
        raise ConfigError([Problem("imports", f"{what}; {how}")])

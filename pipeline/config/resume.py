"""Resume a saved run, or try its model, with the overrides that were typed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from penstock.core import registry
from penstock.core.user_errors import Problem
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.overrides import Typed
from penstock.pipeline.config.places import (
    EXECUTION,
    LENGTH,
    watching,
)
from penstock.pipeline.config.saved import (
    CHECKPOINTS,
    RESUME,
    leaves,
    read_saved,
    variables_of,
)
from penstock.pipeline.config.values import given

_DATA_PLACES = frozenset(
    f"dataset.{part}.{name}"
    for part in ("storage", "source")
    for name in ("path", "table", "query", "topic", "queue")
)


def resume(
    file: Path, texts: Sequence[str], typed: Sequence[Typed], problems: list[Problem],
    added: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Read the config of a job that resumes a run, or of a command that tries one.

    `added` holds the settings of the command, by its name.

    Raises:
        ConfigError: With all mistakes.
    """
    from penstock.pipeline.config.compose import checked

    if not added:
        typed = [part for each in typed for part in _watchers_as_values(each)]
        if (config := _as_typed(file, texts, typed)) is not None:
            return config
    changed, variables = _changed(file, typed, problems, added)
    command = next(iter(added), None)
    return checked(changed, typed, problems, command=command, variables=variables)


def _watchers_as_values(typed: Typed) -> list[Typed]:
    """Take loggers, and callbacks that change nothing of a run, as values of the resumed run."""
    group = typed.group
    nodes = {name: {"_target_": f"{group}/{name}"} for name in typed.options}
    known = all(registry.find(node["_target_"]) for node in nodes.values())
    harmless = group == "logger" or (group == "callback" and watching({group: nodes}) == nodes)
    if not nodes or not known or not harmless:
        return [typed]
    return [
        Typed(typed.text, f"{group}.{name}._target_", node["_target_"], "", False, "")
        for name, node in nodes.items()
    ]


def _as_typed(file: Path, texts: Sequence[str], typed: Sequence[Typed]) -> dict[str, Any] | None:
    """Compare a command line with the run that it resumes.

    Returns:
        The typed config, with the run's own values where they may differ and none was typed; None
        if only values were typed, which change the saved config, or the two do not compare.

    Raises:
        ConfigError: The typed options make another run.
    """
    from penstock.pipeline.config.compose import checked, configure

    new = [text for text in texts if not text.lstrip("+").startswith(f"{RESUME}=")]
    try:
        saved, config = read_saved(file), configure(new)
        if config["imports"] != list(saved.get("imports") or ()):
            return None
        own = checked(saved, (), variables=variables_of(saved))
    except ConfigError:  # reported with the saved config
        return None
    choices = {each: each.key for each in typed if each.group}
    keys = [each.key for each in typed if not each.group]
    for group, names in {**EXECUTION, "trainer": [*EXECUTION["trainer"], *LENGTH]}.items():
        for name in names:
            full = f"{group}.{name}"
            if {group, full} & {*choices.values()}:
                keys.append(full)
            elif not any(f"{each}.".startswith(f"{full}.") for each in keys) and name in own[group]:
                config[group][name] = own[group][name]
    if "outputs" in own and "outputs" not in keys:
        config["outputs"] = own["outputs"]
    if own.get("run"):
        config["run"] = _own_but_typed(own["run"], config.get("run"), "run", keys)
    loggers = {} if "logger" in choices.values() else own.get("logger") or {}
    for group, nodes in {"callback": watching(own), "logger": loggers}.items():
        for name, node in nodes.items():
            if node and (key := f"{group}.{name}") not in keys:
                config[group] = now = config.get(group) or {}
                now[name] = _own_but_typed(node, now.get(name), key, keys)
    keys += ["logger", *(f"callback.{name}" for name in watching(config))]
    config["trainer"]["resume"] = None
    then, current = leaves(own), leaves(config)
    differ = [k for k in sorted(then.keys() | current.keys()) if then.get(k) != current.get(k)]
    differ = [key for key in differ if not any(f"{key}.".startswith(f"{k}.") for k in keys)]
    if differ and not choices:
        return None
    if differ:
        raise ConfigError(_of_another_run(differ, then, current, choices))
    [config["trainer"]["resume"]] = {each.value for each in typed if each.key == RESUME}
    return config


def _own_but_typed(
    own: Mapping[str, Any], now: Mapping[str, Any] | None, key: str, typed: Sequence[str]
) -> dict[str, Any]:
    """Return the node of a run at `key`, with the values that were typed."""
    changed = {name: value for name, value in (now or {}).items() if f"{key}.{name}" in typed}
    return {**own, **changed}


def _of_another_run(
    differ: Sequence[str], then: Mapping[str, Any], now: Mapping[str, Any], paths: dict[Typed, str]
) -> Iterator[Problem]:
    """Yield a problem for each typed option that differs from the run."""
    remedy = f"leave {' '.join(choice.text for choice in paths)} away, and the run keeps its own"
    found = {
        choice: key
        for choice, path in paths.items()
        for key in reversed(differ)
        if f"{key}.".startswith(f"{path}.")
    }
    at = {choice.group: key for choice, key in found.items()} or {RESUME: differ[0]}
    for name, key in at.items():
        values = [given(each[key]) if key in each else "nothing" for each in (now, then)]
        what = f"{key} would be {values[0]}, and the run has {values[1]}"
        yield Problem(name, f"{what}; {remedy}")


def _changed(
    file: Path, typed: Sequence[Typed], problems: list[Problem], added: Mapping[str, Any]
) -> tuple[DictConfig, frozenset[str]]:
    """Change a run's own config by the typed values.

    Returns:
        The config, and the variables that the run's has.
    """
    from penstock.pipeline.config.compose import set_value

    config = read_saved(file)
    values = [each for each in typed if not each.group]
    keys = [each.key for each in values]
    tries = any(key in CHECKPOINTS for key in keys)  # a trained model, maybe on other data
    choices = [each for each in typed if each.group]
    others = [each for each in choices if tries and each.group.startswith("dataset")]
    for each in choices:
        if each not in others:
            kept = (
                "a tried run keeps all components but its data"
                if tries
                else ("a resumed run keeps its components")
            )
            problems.append(Problem(each.group, f"{each.text!r} given, but {kept}; leave it away"))
    if others:
        _choose_data(config, others)
    if tries and _DATA_PLACES & {*keys}:
        for name in ("val_path", "test_path"):  # parts of the run's own data
            if name in config["dataset"]:
                config["dataset"][name] = None
    variables = variables_of(config)
    config.update(added)
    for each in values:
        if each.key in variables:
            problems.append(Problem(each.key, "a saved config holds no variables, so this changes "
                                    "nothing; change the keys that used it"))  # fmt: skip
        else:
            problems += filter(None, [set_value(config, each)])
    saved = [str(name) for name in read_saved(file).get("imports") or ()]
    _refuse_untyped(saved, [str(name) for name in config.get("imports") or ()], keys)
    return config, variables


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

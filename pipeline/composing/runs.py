"""Saved runs: found by path, URL or age, and changed by what is typed to go on with or try one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.core import registry
from penstock.core.user_errors import ExplainedError, Problem, nearest
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.passwords import masked
from penstock.pipeline.composing.overrides import Typed
from penstock.pipeline.composing.values import given
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.places import (
    EXECUTION,
    LENGTH,
    watching,
)
from penstock.pipeline.config.saved import (
    CHECKPOINTS,
    RESUME,
    SAVED,
    fetched_run,
    leaves,
    newest_first,
    read_saved,
    run_behind,
    variables_of,
)

_DATA_PLACES = frozenset(
    f"dataset.{part}.{name}"
    for part in ("storage", "source")
    for name in ("path", "table", "query", "topic", "queue")
)


def _config_at(place: Path) -> Path | None:
    """Find the config of the run that a folder or a checkpoint belongs to."""
    if not place.exists():
        return None
    files = (folder / SAVED for folder in (place, *place.parents[:2]))
    return next((file for file in files if file.is_file()), None)


def _name_of(folder: Path, wanted: str = "") -> str | None:
    """Read the `run.name` of a run, if its config contains the wanted text."""
    try:
        text = (folder / SAVED).read_text(encoding="utf-8")
        return yaml.safe_load(text)["run"]["name"] if wanted in text else None
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):  # damaged, or of before
        return None


def saved_run(typed: Sequence[Typed], problems: list[Problem], command: str | None) -> Path | None:
    """Find the saved config that ``trainer.resume=<path>`` means, or a command's checkpoint.

    Returns:
        The file; None where nothing is named so, where a checkpoint lies in no run's folder (it
        is of what is typed), or there is no run at the path: that is added to the problems, as is
        that a command has none, where there are runs.
    """
    key, path, outputs = RESUME, None, "outputs"
    for each in typed:
        if each.key == "outputs":
            outputs = each.value
        if each.key in (RESUME, *CHECKPOINTS):
            key, path = each.key, each.value
    own = f"{command}.checkpoint"
    if path is None and own in CHECKPOINTS and (newest := _type_newest(own, outputs)):
        problems.append(Problem(own, f"missing, accepts a run's folder, or its run.name{newest}"))
    if not isinstance(path, str) or (key == RESUME and path in ("auto", "None", "")):
        return None
    if is_url(path):
        return _saved_behind(path, key, problems)
    folder = Path(path).expanduser()
    if (file := _config_at(folder)) is not None:
        return file
    if key != RESUME and folder.is_file():
        return None
    missing = "there is no such folder, and no run of this name that has a checkpoint"
    what = f"there is no {SAVED} in it" if folder.exists() else missing
    other = "a checkpoint in one, or auto" if key == RESUME else "or a checkpoint"
    problem = Problem(key, f"{path!r} given, but {what}; accepts a run's folder, such as "
                      f"outputs/<date>/<time>, its run.name, {other}"
                      f"{_type_near(key, path, outputs)}")  # fmt: skip
    problems.append(problem)
    return None


def _saved_behind(url: str, key: str, problems: list[Problem]) -> Path | None:
    """Copy the saved config of a run behind a URL, or of the run that a checkpoint there is of."""
    from penstock.datasets.files.listings import find_file

    try:
        if (run := run_behind(url)) is not None:
            return fetched_run(run, (SAVED,)) / SAVED
        if key != RESUME and find_file(absolute_path(url)) is not None:
            return None
    except (ValueError, ExplainedError) as error:
        problems.append(Problem(key, str(error)))
        return None
    what = f"{masked(url)!r} given, but there is no {SAVED} in it"
    problems.append(Problem(key, f"{what}; accepts a run's folder, or a checkpoint in one"))
    return None


def _with_checkpoint(outputs: Any) -> Iterator[Path]:
    """Yield the folders of runs that have a checkpoint, the newest first; none behind a URL."""
    folders = [] if is_url(outputs) else newest_first(Path(str(outputs)).expanduser())
    yield from (each for each in folders if next(each.glob("checkpoints/*.pt"), None))


def _type_newest(key: str, outputs: Any) -> str:
    """Tell how to name the newest run that has a checkpoint; nothing where there is none."""
    newest = next(_with_checkpoint(outputs), None)
    short = key.rpartition(".")[2] if key in CHECKPOINTS else key
    return f"; type {short}={newest}" if newest else ""


def _type_near(key: str, name: str, outputs: Any) -> str:
    """Tell how to name the run whose `run.name` is nearly the given one, or how to list runs.

    A path is answered with the newest run, as an example; a name never with another run.
    """
    if "/" in name:
        return _type_newest(key, outputs)
    runs = list(_with_checkpoint(outputs))
    names = {called: run for run in reversed(runs) if (called := _name_of(run))}
    near = nearest(name, names)
    short = key.rpartition(".")[2] if key in CHECKPOINTS else key
    if near is not None:
        return f"; type {short}={names[near]} ({near!r})"
    return "; to list the runs, type penstock runs" if runs else ""


def resume(
    file: Path, texts: Sequence[str], typed: Sequence[Typed], problems: list[Problem],
    added: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Read the config of a job that resumes a run, or of a command that tries one.

    Args:
        file: The run's saved config.
        texts: Overrides as typed.
        typed: The same, read.
        problems: Those of the overrides.
        added: The settings of a command, by its name.

    Raises:
        ConfigError: With all mistakes.
    """
    from penstock.pipeline.composing.compose import checked

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
    from penstock.pipeline.composing.compose import checked, configure

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
    """A node of a run, at `key`, with what is typed of it now."""
    changed = {name: value for name, value in (now or {}).items() if f"{key}.{name}" in typed}
    return {**own, **changed}


def _of_another_run(
    differ: Sequence[str], then: Mapping[str, Any], now: Mapping[str, Any], paths: dict[Typed, str]
) -> Iterator[Problem]:
    """Tell where what is typed is not the run: of each option, else of all that is typed."""
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
        what = f"with what is typed {key} is {values[0]}, and the run has {values[1]}"
        yield Problem(name, f"{what}; {remedy}")


def _changed(
    file: Path, typed: Sequence[Typed], problems: list[Problem], added: Mapping[str, Any]
) -> tuple[DictConfig, frozenset[str]]:
    """Change a run's own config by the typed values.

    Returns:
        The config, and the variables that the run's has.
    """
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
        for name in ("val_path", "test_path"):  # they lie beside what the run had
            if name in config["dataset"]:
                config["dataset"][name] = None
    variables = variables_of(config)
    config.update(added)
    for each in values:
        if each.key in variables:
            problems.append(Problem(each.key, "a saved config holds no variables, so this changes "
                                    "nothing; change the keys that used it"))  # fmt: skip
        else:
            _apply(config, each, problems)
    saved = [str(name) for name in read_saved(file).get("imports") or ()]
    _refuse_untyped(saved, [str(name) for name in config.get("imports") or ()], keys)
    return config, variables


def _apply(config: DictConfig, typed: Typed, problems: list[Problem]) -> None:
    """Change or remove one value of a config."""
    parent, _, leaf = typed.key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    try:
        if not typed.deleted:
            OmegaConf.update(config, typed.key, typed.value, merge=True, force_add=True)
        elif isinstance(node, DictConfig) and leaf in node:
            del node[leaf]
        else:
            problems.append(Problem(typed.key, "there is nothing of this name to remove"))
    except OmegaConfBaseException as error:
        said = " ".join(str(error).split("\n    full_key:")[0].split())
        problems.append(Problem(typed.key, f"cannot be given here: {said}"))


def _choose_data(config: DictConfig, choices: Sequence[Typed]) -> None:
    """Replace the data of a run, or a part of it; it is decoded as before.

    Args:
        config: The run's config; changed.
        choices: The chosen data sets and parts.
    """
    from penstock.pipeline.composing.compose import diagnose

    composed, _ = diagnose(choices, [])
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

    Args:
        saved: Modules that the saved config names.
        given: Those that the config names now; where they were typed they are loaded already.
        typed: The keys that were typed.

    Raises:
        ConfigError: A module was not named by the command itself.
    """
    named = {name.rpartition("/")[2] for name in given} if "imports" in typed else set()
    if lacking := [name for name in saved if name.rpartition("/")[2] not in named]:
        what = f"the saved config names {', '.join(lacking)}, and what it imports is run"
        how = f"type imports=[{','.join(saved)}] if you trust it"
        raise ConfigError([Problem("imports", f"{what}; {how}")])

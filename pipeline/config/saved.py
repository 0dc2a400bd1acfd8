"""Saved runs: found by path, URL, name or age, and resumed with typed overrides on top."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from penstock.core.files import own_folder
from penstock.core.registry import value_at
from penstock.core.user_errors import ExplainedError, Problem, nearest
from penstock.datasets.files.access import MissingFile, absolute_path, is_url
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.interpolation import plain
from penstock.pipeline.config.options import STACK_OF
from penstock.pipeline.config.overrides import Typed
from penstock.pipeline.config.places import AUGMENT, PRESETS, top_level_keys, watching
from penstock.pipeline.config.resolve import resolve
from penstock.pipeline.config.values import given

SAVED = "config.yaml"
RESUME = "trainer.resume"
INIT_FROM = "trainer.init_from"
CHECKPOINTS = ("evaluate.checkpoint", "export.checkpoint", "predict.checkpoint")

_FREE = {"loader": "loader.engine", "dataset/cache": "dataset.cache"}
"""Groups whose options a resumed run may change, and what changes with them."""
_DATA = re.compile(r"dataset\.(storage|source)\.(path|table|query|topic|queue)")
_RUN = re.compile(r"(\d{4}-\d\d-\d\d)/(\d\d-\d\d-\d\d)(?:-(\d+))?")


def with_folders(typed: Sequence[Typed]) -> list[Typed]:
    """Replace a run's name, ``run.name``, by its folder in overrides that take a run."""
    [*_, outputs] = ["outputs", *(each.value for each in typed if each.key == "outputs")]
    return [
        replace(each, value=named_run(each.value, outputs))
        if each.key in (RESUME, INIT_FROM, *CHECKPOINTS) and isinstance(each.value, str)
        else each
        for each in typed
    ]


def named_run(name: str, outputs: Any) -> str:
    """Return the folder of the newest run of this name that has a checkpoint, or else `name`.

    A run's folder or a file of this name comes first; another folder, such as data, does not.
    """
    if name == "auto" or is_url(name) or _is_file(name) or _config_at(name) is not None:
        return name
    return next((str(run) for run in _with_checkpoint(outputs) if _name_of(run) == name), name)


def _name_of(folder: Path) -> Any:
    """Read the `run.name` of a run."""
    try:
        return value_at(yaml.safe_load((folder / SAVED).read_text(encoding="utf-8")), "run.name")
    except (OSError, ValueError, yaml.YAMLError):  # damaged
        return None


def saved_run(typed: Sequence[Typed], problems: list[Problem], command: str | None) -> Path | None:
    """Find the saved config that ``trainer.resume=<path>`` means, or a command's checkpoint.

    Returns:
        The file; None without a run, and for a checkpoint outside of a run's folder. A wrong path
        is added to the problems.
    """
    own, values = f"{command}.checkpoint", {each.key: each.value for each in typed}
    needed = own if own in CHECKPOINTS else RESUME
    key = next((each for each in (*CHECKPOINTS, RESUME) if each in values), needed)
    path = values.get(key)
    if key == RESUME and (not isinstance(path, str) or path in ("auto", "None", "")):
        return None
    what = f"{path!r} given, which no run has as its folder or name" if path else "missing"
    try:
        if path and (file := _config_at(str(path))) is not None:
            return file
        if path and key != RESUME and _is_file(str(path)):
            return None
    except (ValueError, ExplainedError) as error:
        problems.append(Problem(key, str(error)))
        return None
    near = _run_near(str(path or ""), values.get("outputs", "outputs"))
    remedy = f"; type {key.removeprefix(f'{command}.')}={near}" if near else ""
    accepted = "accepts a run's folder, its run.name, or a checkpoint"
    problems.append(Problem(key, f"{what}; {accepted}{remedy}"))
    return None


def _config_at(path: str) -> Path | None:
    """Find the config of the run that a folder or a checkpoint belongs to; fetch it from a URL."""
    if is_url(path):
        run = run_behind(path)
        return fetched_run(run, (SAVED,)) / SAVED if run else None
    place = Path(path).expanduser()
    folders = (place, *place.parents[:2]) if place.exists() else ()
    return next((folder / SAVED for folder in folders if (folder / SAVED).is_file()), None)


def _is_file(path: str) -> bool:
    from penstock.datasets.files.remote import find_file

    if is_url(path):
        return find_file(absolute_path(path)) is not None
    return Path(path).expanduser().is_file()


def run_behind(url: str) -> str | None:
    """Find the URL of a run from its own URL or the URL of a checkpoint in it.

    Raises:
        ValueError: The URL carries a password.
        RemoteError: It cannot be read.
    """
    from penstock.datasets.files.clients import AccessDenied
    from penstock.datasets.files.remote import read_url

    url, denied = absolute_path(url), None
    for folder in (url, *(url.rsplit("/", up)[0] for up in (1, 2))):
        try:
            if not folder.endswith(":/") and read_url(f"{folder}/{SAVED}"):
                return folder
        except MissingFile:
            pass
        except AccessDenied as error:  # or there is none, and the key may not list
            denied = denied or error
    if denied is not None:
        raise denied
    return None


def fetched_run(url: str, names: Sequence[str]) -> Path:
    """Copy small files of a run behind a URL, those that are there, to a folder of this process."""
    from penstock.datasets.files.local_copies import fetch_files

    folder = Path(tempfile.mkdtemp(dir=own_folder()))
    fetch_files(url, names, folder)
    return folder


def newest_first(outputs: Path) -> list[Path]:
    """List run folders, the newest first by their names."""
    found = [(match[1], match[2], int(match[3] or 1), file.parent)
             for file in outputs.glob(f"*/*/{SAVED}")
             if (match := _RUN.fullmatch("/".join(file.parts[-3:-1])))]  # fmt: skip
    return [folder for *_, folder in sorted(found, reverse=True)]


def _with_checkpoint(outputs: Any) -> Iterator[Path]:
    """Yield the folders of runs that have a checkpoint, the newest first; none behind a URL."""
    folders = [] if is_url(outputs) else newest_first(Path(str(outputs)).expanduser())
    yield from (each for each in folders if next(each.glob("checkpoints/*.pt"), None))


def _run_near(path: str, outputs: Any) -> Path | None:
    """Find the run of the closest name, since another is another model; for a path, the newest."""
    runs = list(_with_checkpoint(outputs))
    if not path or "/" in path:
        return next(iter(runs), None)
    names = {called: run for run in reversed(runs) if (called := _name_of(run))}
    return names.get(nearest(path, names))


def read_saved(file: Path) -> DictConfig:
    """Read the config that a run has saved."""
    config = OmegaConf.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    if not isinstance(config, DictConfig):
        raise ConfigError([Problem(RESUME, f"{file} is damaged: a mapping is expected in it")])
    return config


def variables_of(config: DictConfig) -> frozenset[str]:
    """List the variables of a saved config, whose interpolations are resolved already."""
    top = {str(name) for name in config} - set(top_level_keys())
    inner = {str(name) for name in config.get("augment") or ()} - {*AUGMENT}
    return frozenset(top | {f"augment.{name}" for name in inner})


def leaves(node: Any, key: str = "") -> dict[str, Any]:
    """List the values in a config by their full keys, without those that are null."""
    if not isinstance(node, Mapping) or not node:
        return {} if node is None else {key: node}
    return {
        full: value
        for name, item in node.items()
        for full, value in leaves(item, f"{key}.{name}" if key else str(name)).items()
    }


def resumed(
    file: Path, composed: DictConfig, typed: Sequence[Typed], problems: list[Problem]
) -> DictConfig:
    """Read the config of a job that resumes a run, or of a command that tries one.

    Typed options must equal the run's options, except the engine, the cache, loggers and callbacks
    that only watch. A command may choose other data.

    Args:
        file: The saved config.
        composed: A new config with everything that was typed.
        typed: The overrides; the caller sets their values.
        problems: Gets the options that differ, and values without effect.

    Raises:
        ConfigError: The config imports modules that were not typed.
    """
    config = read_saved(file)
    _refuse_untyped(config, typed)
    keys = {each.key for each in typed if not each.group}
    choices, groups = [each for each in typed if each.group], {each.group for each in typed}
    if keys & {*CHECKPOINTS}:
        _choose_data(config, composed, groups, keys)
        choices = [each for each in choices if not each.group.startswith("dataset")]
    fresh = plain(composed)[0]
    resolve(fresh, {each.key for each in typed})
    now, then = leaves(fresh), leaves(plain(config)[0])
    # Values that the option lacks are defaults, but components that it lacks are others.
    compared = [*now, *(key for key in then if key.endswith("._target_")
                        and not then[key].startswith("settings/"))]  # fmt: skip
    differing = [key for key in compared if key not in keys and now.get(key) != then.get(key)]
    for each in choices:
        place = "" if each.group in PRESETS else STACK_OF.get(each.group, each.key)
        nodes = {name: {"_target_": f"{each.group}/{name}"} for name in each.value}
        watches = each.group == "logger" or watching({"callback": nodes}) == nodes
        if nodes and each.group in ("logger", "callback") and watches:
            OmegaConf.update(config, each.group, nodes, merge=True, force_add=True)
        elif key := _FREE.get(each.group):
            OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
        elif key := next((k for k in differing if f"{k}.".startswith(place and f"{place}.")), ""):
            what = f"{key} would be {given(now.get(key))}, the run has {given(then.get(key))}"
            problems.append(Problem(each.group, f"{what}; leave {each.text} away"))
    for each in typed:
        if each.key in variables_of(config) and OmegaConf.select(config, each.key) != each.value:
            what = "a saved config holds no variables, so this changes nothing"
            problems.append(Problem(each.key, f"{what}; change the keys that used it"))
    return config


def _choose_data(
    config: DictConfig, composed: DictConfig, groups: set[str], keys: set[str]
) -> None:
    """Replace the data of a run, or a part of it; it is decoded as before."""
    run, parts = config["dataset"], [group for group in groups if group.startswith("dataset/")]
    for group in ("dataset", "sampler") if "dataset" in groups else parts:
        key = group.replace("/", ".")
        OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
    if "dataset" in groups:
        for name in {"decode", "val_fraction"} & run.keys() & config["dataset"].keys():
            if f"dataset/{name}" not in groups:
                config["dataset"][name] = run[name]
        before, now = run.get("storage") or {}, config["dataset"].get("storage") or {}
        if before.get("_target_") == now.get("_target_") and "endings" in before:
            now["endings"] = before["endings"]  # a folder of sounds
    if any(map(_DATA.fullmatch, keys)):
        for name in {"val_path", "test_path"} & config["dataset"].keys():
            config["dataset"][name] = None  # parts of the run's own data


def _refuse_untyped(config: Mapping[str, Any], typed: Sequence[Typed]) -> None:
    """Refuse to run code that a saved config alone names: it may be a stranger's.

    Raises:
        ConfigError: A module was not named by the command itself.
    """
    saved = [str(name) for name in config.get("imports") or ()]
    given_now = [name for each in typed if each.key == "imports" for name in each.value or ()]
    named = {str(name).rpartition("/")[2] for name in given_now}
    if lacking := [name for name in saved if name.rpartition("/")[2] not in named]:
        what = f"the saved config imports {', '.join(lacking)}, whose code would run"
        how = f"type imports=[{','.join(saved)}] if you trust it"
        raise ConfigError([Problem("imports", f"{what}; {how}")])

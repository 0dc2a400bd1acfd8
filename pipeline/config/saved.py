"""Saved runs: found by path, URL, name or age, and read."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from penstock.core.files import own_folder
from penstock.core.user_errors import ExplainedError, Problem, nearest
from penstock.datasets.files.access import MissingFile, absolute_path, is_url
from penstock.datasets.files.passwords import masked
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.overrides import Typed
from penstock.pipeline.config.places import AUGMENT, top_level_keys

SAVED = "config.yaml"
RESUME = "trainer.resume"
INIT_FROM = "trainer.init_from"
CHECKPOINTS = ("evaluate.checkpoint", "export.checkpoint", "predict.checkpoint")

_TIME = re.compile(r"(\d\d-\d\d-\d\d)(?:-(\d+))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def naming_folders(texts: Sequence[str], command: str | None) -> list[str]:
    """Replace a run's name, ``run.name``, by its folder in overrides that take a run.

    Of several runs with one name, the newest with a checkpoint counts. An existing run folder or
    file of this name comes first.
    """
    values = {text.lstrip("+").partition("=")[0]: text.partition("=")[2] for text in texts}
    keys = (RESUME, INIT_FROM, *((f"{command}.checkpoint", "checkpoint") if command else ()))
    found: dict[str, Path] = {}
    for key in values.keys() & {*keys}:
        name = values[key].strip("'\"")
        if name in ("", "auto", "null") or is_url(name) or _is_run_or_file(name):
            continue
        for folder in _with_checkpoint(values.get("outputs", "outputs")):
            if _name_of(folder, name) == name:
                found[key] = folder
                break
    folders = {key: f"{key}={folder}" for key, folder in found.items()}
    return [folders.get(text.lstrip("+").partition("=")[0], text) for text in texts]


def _is_run_or_file(path: str) -> bool:
    """Return whether a path names a file, a run's folder, or a folder in one."""
    place = Path(path).expanduser()
    return place.is_file() or _config_at(place) is not None or (place / "checkpoints").is_dir()


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
        The file; None without a run, and for a checkpoint outside of a run's folder. A wrong path
        is added to the problems.
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
    found = []
    for day in outputs.iterdir() if outputs.is_dir() else ():
        if not _DATE.fullmatch(day.name) or not day.is_dir():
            continue
        for folder in day.iterdir():
            match = _TIME.fullmatch(folder.name)
            if match and (folder / SAVED).is_file():
                found.append((day.name, match[1], int(match[2] or 1), folder))
    return [folder for *_, folder in sorted(found, reverse=True)]


def _with_checkpoint(outputs: Any) -> Iterator[Path]:
    """Yield the folders of runs that have a checkpoint, the newest first; none behind a URL."""
    folders = [] if is_url(outputs) else newest_first(Path(str(outputs)).expanduser())
    yield from (each for each in folders if next(each.glob("checkpoints/*.pt"), None))


def _type_newest(key: str, outputs: Any) -> str:
    """Return the override for the newest run that has a checkpoint, or an empty string."""
    newest = next(_with_checkpoint(outputs), None)
    short = key.rpartition(".")[2] if key in CHECKPOINTS else key
    return f"; type {short}={newest}" if newest else ""


def _type_near(key: str, name: str, outputs: Any) -> str:
    """Return the override for the run with the closest ``run.name``; for a path, the newest run."""
    if "/" in name:
        return _type_newest(key, outputs)
    runs = list(_with_checkpoint(outputs))
    names = {called: run for run in reversed(runs) if (called := _name_of(run))}
    if (near := nearest(name, names)) is None:
        return "; to list the runs, type penstock runs" if runs else ""
    short = key.rpartition(".")[2] if key in CHECKPOINTS else key
    return f"; type {short}={names[near]} ({near!r})"


def read_saved(file: Path) -> DictConfig:
    """Read the config that a run has saved."""
    config = OmegaConf.create(yaml.safe_load(file.read_text(encoding="utf-8")))
    if not isinstance(config, DictConfig):
        raise ConfigError([Problem(RESUME, f"{file} is damaged: a mapping is expected in it")])
    return config


def variables_of(config: DictConfig) -> frozenset[str]:
    """List the variables of a saved config, whose interpolations are resolved already."""
    top = {str(name) for name in config} - set(top_level_keys())
    augment = config.get("augment")
    inner = {str(name) for name in augment} if isinstance(augment, DictConfig) else set()
    return frozenset(top | {f"augment.{name}" for name in inner - {*AUGMENT}})


def leaves(node: Any, key: str = "") -> dict[str, Any]:
    """List the values in a config by their full keys, without those that are null."""
    if not isinstance(node, Mapping) or not node:
        return {} if node is None else {key: node}
    return {
        full: value
        for name, item in node.items()
        for full, value in leaves(item, f"{key}.{name}" if key else str(name)).items()
    }

"""Make the folder of a run or find it again, and keep what the run is about in it."""

from __future__ import annotations

import copy
import fcntl
import itertools
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

import yaml

from penstock.core import files
from penstock.core.contracts import Task
from penstock.core.files import writing
from penstock.datasets.files.access import absolute_path, is_object_store, is_url
from penstock.datasets.files.remote import find_file, list_files
from penstock.pipeline.build import settle
from penstock.pipeline.config.places import declared, watching
from penstock.pipeline.config.saved import SAVED, fetched_run, leaves, newest_first, run_behind
from penstock.pipeline.learning.building import fitted_tasks
from penstock.pipeline.loader.state import differing
from penstock.pipeline.mixes import MIX
from penstock.pipeline.training.run_copy import (
    MARK,
    SUMMARY,
    RunCopy,
    claim_again,
    claim_new,
    is_alive,
)

_log = logging.getLogger(__name__)

CLASSES, TABLE, SOURCE = "classes.json", "table.json", "source.yaml"
FIGURES = "figures.json"
_TELLING = (SAVED, SUMMARY, "metrics.csv", MARK)
"""What tells of a run that is only looked at."""


class RunFolder:
    """The folder of a run that this process owns until it ends, or until `release`.

    Attributes:
        path: The folder, on this machine.
        resumes: Whether training resumes from a checkpoint.
        checkpoint: The checkpoint that was asked for, a file or a URL; None takes the newest one.
    """

    def __init__(
        self,
        path: Path,
        lock: IO[str] | None,
        *,
        resumes: bool,
        checkpoint: Path | str | None = None,
        copy: RunCopy | None = None,
        made: Sequence[Path] = (),
    ) -> None:
        self.path = path
        self.resumes = resumes
        self.checkpoint = checkpoint
        self._lock = lock
        self._copy = copy
        self._made = made

    def __str__(self) -> str:
        """Where users find it: the URL that it is copied to, or the folder."""
        return self.url or str(self.path)

    @property
    def is_lost(self) -> bool:
        """Whether another process has gone on with it meanwhile, on another machine."""
        return self._copy is not None and self._copy.lost

    @property
    def url(self) -> str | None:
        """The URL that it is copied to, if any."""
        return None if self._copy is None else self._copy.url

    def flush(self, *, hurry: bool) -> None:
        """Wait until all is at the URL, if it has one; see `RunCopy.flush`."""
        if self._copy is not None:
            self._copy.flush(hurry=hurry)

    def release(self) -> None:
        """Unlock the folder. If no run began in it, remove the folders that this process made."""
        if self._copy is not None:
            self._copy.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._made and not (self.path / SAVED).exists():
            shutil.rmtree(self.path, ignore_errors=True)
            for folder in self._made[1:]:
                with suppress(OSError):  # another run is in it
                    folder.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Begin: write ``config.yaml``, the resolved config, less what only asked for a resume.

        A run that is gone on with keeps its name and tags where none are given.
        """
        kept = copy.deepcopy(dict(config))
        path = self.path / SAVED
        if path.exists() and (own := yaml.safe_load(path.read_text(encoding="utf-8")).get("run")):
            given = {key: value for key, value in (kept.get("run") or {}).items() if value}
            kept["run"] = {**own, **given}
        kept["trainer"] = {**kept["trainer"], "resume": None, "resume_anyway": False}
        write_whole(path, _dump(kept))


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where runs lie, each in ``<date>/<time>``.

    Attributes:
        folder: The folder; of a URL, one with copies of the files that tell of its runs.
        url: The URL, or None.
    """

    folder: Path
    url: str | None = None

    @classmethod
    def at(cls, path: str, *, telling: bool) -> Outputs:
        """Look at a folder, or a URL.

        Args:
            path: The folder or the URL.
            telling: Copy from the URL what tells of runs.

        Raises:
            ValueError: The URL carries a password.
            RemoteError: It cannot be read.
        """
        if not is_url(path):
            return cls(Path(path))
        url = absolute_path(path)
        found = [each.name for each in list_files(url)] if telling else []
        return cls(fetched_run(url, [n for n in found if n.rpartition("/")[2] in _TELLING]), url)

    def __str__(self) -> str:
        return self.url or str(self.folder)

    def name(self, run: Path) -> str:
        """Where users find a run."""
        return f"{self}/{run.relative_to(self.folder).as_posix()}" if self.url else str(run)

    def claim(self, run: Path) -> RunFolder | None:
        """Own a run that is gone on with; None: another process is training in it."""
        return claimed(self.name(run)) if self.url else _own(run)

    def make(self) -> RunFolder:
        """Make the folder of a new run."""
        if self.url is None:
            return make_run_folder(self.folder, datetime.now())
        for name in _names(datetime.now()):
            if (made := claim_new(f"{self.url}/{name}")) is not None:
                return RunFolder(
                    made.folder, _locked(made.folder), resumes=False, copy=made, made=[made.folder]
                )
        raise AssertionError("names do not end")


def open_run_folder(config: Mapping[str, Any]) -> RunFolder:
    """The folder that ``trainer.resume`` asks for.

    Raises:
        ValueError: A folder or file to resume from is not there, or another process has it.
        ExplainedError: A URL cannot be read or written.
    """
    resume = config["trainer"].get("resume")
    outputs = Outputs.at(config["outputs"], telling=resume == "auto")
    if resume is None:
        return outputs.make()
    if resume == "auto":
        return _newest_equal(config, outputs) or outputs.make()
    return _named_behind(resume, outputs) if is_url(resume) else _named(Path(resume), outputs)


def claimed(url: str) -> RunFolder | None:
    """Own a run at a URL, to go on with it; None: another process is training in it."""
    locks: list[IO[str] | None] = []

    def is_free(folder: Path) -> bool:
        locks.append(_locked(folder))
        return locks[0] is not None

    found = claim_again(url, is_free=is_free)
    if found is None:
        return None
    lock = locks[0] if locks else _locked(found.folder)
    return RunFolder(found.folder, lock, resumes=True, copy=found)


def make_run_folder(outputs: Path, now: datetime) -> RunFolder:
    """Make ``<outputs>/<date>/<time>``, with ``-2``, ``-3``, ... where that is taken."""
    day = outputs / now.strftime("%Y-%m-%d")
    above = [] if day.exists() else [day]
    try:
        day.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"outputs is {str(outputs)!r}, and a run's folder cannot be made there: "
            f"{error.strerror} ({error.filename}); set outputs to a folder that can be written"
        ) from error
    for name in _names(now):
        path = outputs / name
        with suppress(FileExistsError):
            path.mkdir()
            return RunFolder(path, _locked(path), resumes=False, made=[path, *above])
    raise AssertionError("names do not end")


def _names(now: datetime) -> Iterator[str]:
    start = now.strftime("%Y-%m-%d/%H-%M-%S")
    return itertools.chain([start], (f"{start}-{number}" for number in itertools.count(2)))


def write_whole(path: Path, text: str) -> None:
    """Write a text file of a run, whole or not at all.

    Raises:
        DiskError: The disk is full.
    """
    with writing(path):
        files.write_whole(path, text, alone=True)


def keep_classes(run_dir: Path, classes: Mapping[str, Sequence[str]]) -> None:
    """Write the names of the classes, by field, to a run's folder."""
    text = json.dumps(classes, indent=1, ensure_ascii=False)
    write_whole(run_dir / CLASSES, text + "\n")


def read_classes(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """Read what `keep_classes` wrote; nothing where there is no such file.

    Raises:
        ValueError: The file is damaged.
    """
    path = run_dir / CLASSES
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(field): tuple(map(str, names)) for field, names in content.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); name the classes in the data") from error


def keep_initial(run_dir: Path, taken: Mapping[str, Any]) -> None:
    """Write to a run's folder which weights it began with."""
    write_whole(run_dir / "init_from.json", json.dumps(taken, indent=1) + "\n")


def kept_figures(task: Task, dataset: Any, run_dir: Path | None) -> dict[str, dict[str, Any]]:
    """Read the figures that tasks have learned in a run, or compute and write them.

    Args:
        task: The task, or a group of them.
        dataset: The data to learn from, by its index.
        run_dir: The run's folder; None: they are computed and not kept.

    Returns:
        By the task's name, empty where there is only one; nothing for those that learn nothing.

    Raises:
        ValueError: The data has no such figures, or those that were kept are damaged.
    """
    fitted = fitted_tasks(task)
    path = None if run_dir is None else run_dir / FIGURES
    if fitted and path is not None and path.exists():
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); start anew") from error
    index = getattr(dataset, "index", None)  # of a stream there is none
    figures = {name: each.fit(index) for name, each in fitted.items()}
    if any(figures.values()) and path is not None:
        write_whole(path, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    return figures


def keep_table(run_dir: Path, table: Any, *, resumes: bool, anyway: bool) -> None:
    """Write what a table's samples were scaled by to a run's folder, or compare with it.

    Args:
        run_dir: The run's folder.
        table: What the loader knows of a table, see `TableDecoder`; None: nothing is written.
        resumes: The run goes on: its figures must be those that it began with.
        anyway: They may differ.

    Raises:
        ValueError: They differ (one line).
    """
    path = run_dir / TABLE
    if table is None:
        return
    now = table.statistics.as_json()
    if resumes and path.exists() and not anyway:
        try:
            then = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); start anew") from error
        line = next(differing(then, now, "table"), None)
        if line is not None:
            raise ValueError(
                f"trainer.resume: the model was trained with other figures of its columns: {line}; "
                f"use the same data, or go on with the old ones: dataset.decode.statistics={path} "
                f"trainer.resume_anyway=true"
            )
    write_whole(path, json.dumps(now, indent=1) + "\n")


def settled(config: Mapping[str, Any], run_dir: Path) -> Mapping[str, Any]:
    """Have the source of a stream read what the run began with; see `pipeline.build.settle`.

    Raises:
        ValueError: What was kept of it is damaged.
    """
    path = run_dir / SOURCE
    if path.exists():
        try:
            source = {**config["dataset"]["source"], **yaml.safe_load(path.read_text("utf-8"))}
        except (yaml.YAMLError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged; start anew with trainer.resume=null") from error
        return {**config, "dataset": {**config["dataset"], "source": source}}
    found = settle(config)
    if found is not config:
        then, now = config["dataset"]["source"], found["dataset"]["source"]
        kept = {name: value for name, value in now.items() if then.get(name) != value}
        write_whole(path, _dump(kept))
    return found


def _named(path: Path, outputs: Outputs) -> RunFolder:
    if not path.exists():
        raise ValueError(
            f"trainer.resume: {path} does not exist; give a run's folder, a checkpoint file, or "
            f"auto"
        )
    checkpoint = path if path.is_file() else None
    folder = path.parent.parent if checkpoint else path
    if checkpoint and not (folder / SAVED).is_file():
        return _in_a_new_one(checkpoint, outputs)
    if not checkpoint and not (folder / "checkpoints").is_dir():
        raise ValueError(
            f"trainer.resume: {folder} has no checkpoints; give the folder of a run that has "
            f"written one, or start anew with trainer.resume=null"
        )
    return _going_on(_own(folder), str(folder), checkpoint)


def _named_behind(url: str, outputs: Outputs) -> RunFolder:
    run, url = run_behind(url), absolute_path(url)
    if run != url and find_file(url) is None:
        raise ValueError(
            f"trainer.resume: {url} does not exist, or is no run's; give a run's folder, a "
            f"checkpoint file, or auto"
        )
    checkpoint = None if run == url else url
    if run is not None and is_object_store(run):
        return _going_on(claimed(run), run, checkpoint)
    return _in_a_new_one(checkpoint or f"{url}/checkpoints/last.pt", outputs)


def _in_a_new_one(checkpoint: Path | str, outputs: Outputs) -> RunFolder:
    _log.info("%s lies in no run's folder that can be written; going on in a new one", checkpoint)
    made = outputs.make()
    made.resumes, made.checkpoint = True, checkpoint
    return made


def _going_on(folder: RunFolder | None, name: str, checkpoint: Path | str | None) -> RunFolder:
    if folder is None:
        raise ValueError(f"trainer.resume: another process is training in {name}; stop it first")
    _log.info("resuming %s", name)
    folder.checkpoint = checkpoint
    return folder


def _newest_equal(config: Mapping[str, Any], outputs: Outputs) -> RunFolder | None:
    """Claim the newest run of an equal config for `trainer.resume=auto`; None: make a new one.

    With `run.name` it is the newest run of this name; if there is none, the newest without a name.

    Raises:
        ValueError: The name is taken: its runs have other configs, or one is in training.
    """
    wanted = yaml.safe_load(_dump(config))
    name = _name_of(wanted)
    runs = [run for folder in newest_first(outputs.folder) if (run := _read_run(folder, wanted))]
    if name is not None:
        named = [
            run
            for run in runs
            if run.name == name and (not run.differs or outputs.url or _has_begun(run.path))
        ]
        runs = named or [run for run in runs if run.name is None]
        if named and all(run.differs for run in named):
            raise ValueError(_taken_name(name, named[0], outputs))
    found = next((run for run in runs if run.differs is None), None)
    called = "" if name is None else f" and the name {name}"
    if found is None:
        newest = (
            f"; the newest run, {outputs.name(runs[0].path)}: {runs[0].differs}" if runs else ""
        )
        _log.info(
            "resume=auto: no run of this config%s in %s; starting a new one%s",
            called, outputs, newest,
        )  # fmt: skip
        return None
    folder, is_named = outputs.name(found.path), name is not None and found.name == name
    # torchrun also starts all ranks again if one died after the run was done.
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if (found.path / SUMMARY).exists() and not (found.is_shorter or again or is_named):
        _log.info(
            "resume=auto: the newest run of this config, %s, is finished; starting a new one",
            folder,
        )
        return None
    what = "the newest run of this config" + ", which was to be shorter" * found.is_shorter
    taken = outputs.claim(found.path)
    if taken is not None:
        _log.info("resume=auto: going on with %s, %s", folder, what)
    elif is_named:
        raise ValueError(
            f"run.name: another process is training {name!r} in {folder}; stop it first, or type "
            f"another run.name"
        )
    else:
        _log.info(
            "resume=auto: another process is training in %s, %s; starting a new one", folder, what
        )
    return taken


@dataclass(frozen=True, slots=True)
class _SavedRun:
    """A run beside which a config is laid.

    Attributes:
        path: Its folder.
        name: Its `run.name`.
        differs: The first key that differs, with both values; None: the configs are equal.
        is_shorter: Whether the config asks for a longer run.
    """

    path: Path
    name: str | None
    differs: str | None
    is_shorter: bool


def _read_run(folder: Path, wanted: Mapping[str, Any]) -> _SavedRun | None:
    """Compare a run with a config; None: its own config is missing or damaged."""
    try:
        saved = yaml.safe_load((folder / SAVED).read_text(encoding="utf-8"))
        now, then = leaves(comparable(wanted)), leaves(comparable(saved))
        differing = (key for key in [*now, *then] if now.get(key) != then.get(key))
        differs = next(
            (f"{key} is {now.get(key)}, and was {then.get(key)} there" for key in differing), None
        )
        is_shorter = not _reaches_as_far(saved, wanted)
        return _SavedRun(folder, _name_of(saved), differs, is_shorter)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
        return None


def _has_begun(run: Path) -> bool:
    """Whether a run has a checkpoint or is in training: until then its name is free."""
    return any(run.glob("checkpoints/*.pt")) or state_of_run(run) == "running"


def _taken_name(name: str, run: _SavedRun, outputs: Outputs) -> str:
    folder, differs = outputs.name(run.path), str(run.differs)
    is_value = (
        differs.startswith(("optimizer.", "scheduler.", "trainer.")) and "._target_" not in differs
    )
    other = f", or resume that run with the new value: trainer.resume={folder}" * is_value
    return (
        f"run.name: {name!r} is the name of another run, {folder}: {differs}; type another "
        f"run.name{other}"
    )


def _name_of(config: Mapping[str, Any]) -> str | None:
    return (config.get("run") or {}).get("name")


def _own(folder: Path) -> RunFolder | None:
    lock = _locked(folder)
    return None if lock is None else RunFolder(folder, lock, resumes=True)


_AROUND = ("outputs", "run", "logger")
_EXECUTION = {
    "dataset": ["cache"],
    "loader": (
        "engine num_workers prefetch_factor pin_memory persistent_workers across_epochs timeout_s "
        "multiprocessing_context resources affinity nice max_error_rate"
    ).split(),
    "trainer": (
        "resume resume_anyway progress timeout_s save checkpoint_every checkpoint_seconds log_every"
    ).split(),
}
"""Keys by group that a resumed run may change: they decide how a run computes, not its results."""

_LENGTH = ("max_epochs", "max_steps")
"""Settings of the trainer that limit the length of a run; a resumed run may change them."""


def _lengths_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """List the limits of the length of a run by key; null means unlimited."""
    lengths = {f"trainer.{name}": config["trainer"].get(name) for name in _LENGTH}
    for name, node in (config.get("callback") or {}).items():
        for limit in declared(node).limits if node else ():
            lengths[f"callback.{name}.{limit}"] = node.get(limit)
    return lengths


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what does not change its results, and without the length of the run."""
    kept = {key: value for key, value in config.items() if key not in _AROUND}
    for group in _EXECUTION:
        kept[group] = _without_execution(kept.get(group) or {}, group)
    kept["trainer"] = {k: v for k, v in kept["trainer"].items() if k not in _LENGTH}
    watchers, callbacks = watching(config), config.get("callback") or {}
    kept["callback"] = {name: node for name, node in callbacks.items() if name not in watchers}
    if kept["dataset"].get("_target_") == MIX:
        kept["dataset"]["sources"] = {
            name: {**source, "dataset": _without_execution(source["dataset"], "dataset")}
            for name, source in kept["dataset"]["sources"].items()
            if source
        }
    return kept


def _without_execution(node: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name not in _EXECUTION[group]}


def _reaches_as_far(config: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether a run is to be at least as long as a saved one."""
    now, then = _lengths_of(config), _lengths_of(saved)
    return all((now.get(k) or math.inf) >= (then.get(k) or math.inf) for k in now.keys() | then)


def _locked(folder: Path) -> IO[str] | None:
    """A lock on the folder that the system lifts when this process ends; None if it is taken.

    A record lock, and not flock: forked workers do not inherit it, so one that outlives a
    killed run for some seconds keeps nobody out.
    """
    file = (folder / ".lock").open("a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        pass
    return file


def state_of_run(folder: Path) -> Literal["running", "stopped", "done"]:
    """Tell whether a process trains in a run's folder, or in that which it is a copy of.

    The lock is only looked at.
    """
    try:
        with (folder / ".lock").open() as lock:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        locked = False
    except BlockingIOError:
        locked = True
    except OSError:  # there is none, or the file system has no locks
        locked = False
    if (folder / SUMMARY).exists():
        return "done"
    return "running" if locked or is_alive(folder / MARK) else "stopped"


def _dump(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)

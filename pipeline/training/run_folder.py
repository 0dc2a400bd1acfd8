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
from penstock.datasets.files.listings import find_file, list_files
from penstock.pipeline.build import settle
from penstock.pipeline.config.places import (
    AROUND,
    EXECUTION,
    LENGTH,
    MIX,
    lengths_of,
    watching,
)
from penstock.pipeline.config.saved import SAVED, fetched_run, newest_first, run_behind
from penstock.pipeline.learning.building import fitted_tasks
from penstock.pipeline.loader.state import differing
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
        resumes: Whether it was there before and is gone on with.
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
    ) -> None:
        self.path = path
        self.resumes = resumes
        self.checkpoint = checkpoint
        self._lock = lock
        self._copy = copy

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
        """Let others have the folder; one in which no run has begun is removed."""
        if self._copy is not None:
            self._copy.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if not (self.path / SAVED).exists():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # others lie there
                self.path.parent.rmdir()

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
                return RunFolder(made.folder, _locked(made.folder), resumes=False, copy=made)
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
            return RunFolder(path, _locked(path), resumes=False)
    raise AssertionError("names do not end")


def _names(now: datetime) -> Iterator[str]:
    start = now.strftime("%Y-%m-%d/%H-%M-%S")
    return itertools.chain([start], (f"{start}-{number}" for number in itertools.count(2)))


def write_whole(path: Path, text: str) -> None:
    """Write a text file of a run, whole or not at all.

    Raises:
        ValueError: The disk is full.
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
    """The newest run of an equal config, else of one that is shorter, if it can be gone on with.

    None that has a name, where another one is asked for.
    """
    wanted = yaml.safe_load(_dump(config))
    name = _name_of(wanted)
    shorter: list[Path] = []
    for folder in newest_first(outputs.folder):
        try:
            saved = yaml.safe_load((folder / SAVED).read_text(encoding="utf-8"))
            equal = comparable(saved) == comparable(wanted) and _reaches_as_far(wanted, saved)
            equal = equal and (name is None or _name_of(saved) in (None, name))
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            continue  # no config, or one that is damaged
        if not equal:
            continue
        if not _reaches_as_far(saved, wanted):
            shorter.append(folder)
            continue
        # torchrun also starts all again where one has died after the end.
        if (folder / SUMMARY).exists() and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
            _log.info(
                "resume=auto: the newest run of this config, %s, is finished; starting a new one",
                outputs.name(folder),
            )
            return None
        return _taken(outputs, folder, "the newest run of this config")
    if shorter:
        return _taken(outputs, shorter[0], "the newest run of this config, which was to be shorter")
    called = "" if name is None else f" and the name {name}"
    _log.info("resume=auto: no run of this config%s in %s; starting a new one", called, outputs)
    return None


def _name_of(config: Mapping[str, Any]) -> str | None:
    return (config.get("run") or {}).get("name")


def _taken(outputs: Outputs, run: Path, what: str) -> RunFolder | None:
    folder, name = outputs.claim(run), outputs.name(run)
    if folder is None:
        _log.info(
            "resume=auto: another process is training in %s, %s; starting a new one", name, what
        )
        return None
    _log.info("resume=auto: going on with %s, %s", name, what)
    return folder


def _own(folder: Path) -> RunFolder | None:
    lock = _locked(folder)
    return None if lock is None else RunFolder(folder, lock, resumes=True)


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what does not change its results, and without the length of the run."""
    kept = {key: value for key, value in config.items() if key not in AROUND}
    for group in EXECUTION:
        kept[group] = _without_execution(kept.get(group) or {}, group)
    kept["trainer"] = {k: v for k, v in kept["trainer"].items() if k not in LENGTH}
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
    return {name: value for name, value in node.items() if name not in EXECUTION[group]}


def _reaches_as_far(config: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether a run is to be at least as long as a saved one."""
    now, then = lengths_of(config), lengths_of(saved)
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

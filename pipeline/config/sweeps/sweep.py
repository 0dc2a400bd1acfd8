"""Sweeps: every job checked before the first runs, and a table of what came out."""

from __future__ import annotations

import csv
import functools
import io
import os
import pkgutil
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from penstock.core.files import machine_folder, write_whole
from penstock.core.user_errors import ExplainedError, in_one_line, program_of
from penstock.datasets.files.access import absolute_path, is_url
from penstock.datasets.files.passwords import MASK, masked
from penstock.pipeline.config.command_line import print_config
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.composition import (
    ROOT_CONFIG,
    BasicSweeper,
    Composer,
    HydraException,
    base_version,
    setup_globals,
)
from penstock.pipeline.config.errors import ConfigError, Problem, is_first_rank
from penstock.pipeline.config.job import Job, check_config, read_job
from penstock.pipeline.config.overrides import parse, quote
from penstock.pipeline.config.sweeps.search import SAMPLERS, SEARCHES, Search, is_search, result_of
from penstock.pipeline.schedulers.units import rank

_KEYS = ("hydra.", "hydra/")
_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"}
"""The extras that bring launchers, by the launchers' names."""


def sweep(
    texts: Sequence[str],
    composer: Composer,
    job: str,
    *,
    show_only: bool = False,
    prints: bool = True,
) -> int:
    """Run a job for every combination of the swept values.

    Args:
        texts: Overrides as typed.
        composer: Groups and options.
        job: Dotted path of the job, which child processes of a launcher import.
        show_only: Print the configs of the jobs and run none.
        prints: Print the table; of several ranks, which run the same jobs, one does.

    Returns:
        0, or 1 if a job failed; the others have run all the same.

    Raises:
        ConfigError: With the mistakes of all jobs; none has been started.
    """
    quoted = [quote(text, composer, sweep=True) for text in texts]
    settings = [text for text in quoted if text.lstrip("+~").startswith(_KEYS)]
    values = [text for text in quoted if text not in settings]
    search = Search(values, composer) if is_search(settings) else None
    swept = search.samples if search is not None else expand(values, composer)
    jobs = check_jobs(swept, composer)
    master = _master(settings, composer)
    if show_only:
        for overrides, read in zip(swept, jobs, strict=True):
            print(f"# {masked(' '.join(overrides))}")
            print_config(read.config)
            print("---")
        return 0
    if search is not None:
        search.prepare(master, settings, jobs[0].config, job)
    finished: list[Any] = []
    status: int | None = None
    try:
        results = _launch(master, jobs, composer, job, finished, search)
    except (KeyboardInterrupt, SystemExit) as error:  # a job that is stopped ends by the second
        code = error.code if isinstance(error, SystemExit) else 128 + signal.SIGINT
        status = code if isinstance(code, int) else 1
        results = [*finished, *({} for _ in jobs[len(finished) :])]
        if search is not None:
            results = search.results
    except BrokenExecutor as error:
        raise ExplainedError(
            "a process that ran jobs was ended, often for want of memory; lower "
            f"hydra.launcher.n_jobs ({program_of('runs')} lists what the jobs came to)"
        ) from error
    if search is not None:
        swept = search.launched
    if prints:
        file = _write_csv(swept, results, jobs[0].config["outputs"])
        print_table(swept, results)
        print(f"all figures of the jobs: {file}")
        for line in _how_to_have_the_best(swept, results):
            print(line)
        if status is not None:
            print("\n".join(_how_to_go_on(swept, len(finished), master)))
    if status is None:
        status = int(any(isinstance(result, BaseException) for result in results))
    return status


def _how_to_go_on(
    swept: Sequence[Sequence[str]], finished: int, master: DictConfig
) -> Iterator[str]:
    """Say what to type for the jobs that a stopped sweep has not done."""
    basic = master.hydra.launcher._target_.endswith(".BasicLauncher")
    if not basic or SEARCHES in master.hydra.sweeper._target_:
        yield f"stopped; {program_of('runs')} lists what each job came to"
        return
    yield f"stopped in job {finished} of {len(swept)}; it goes on, and the others begin, with"
    for number, overrides in enumerate(swept[finished:]):
        resume = ["trainer.resume=auto"] if number == 0 else []
        yield f"  {_typed([*overrides, *resume])}"
    yield from _left_out([text for overrides in swept for text in overrides])


def _how_to_have_the_best(swept: Sequence[Sequence[str]], results: Sequence[Any]) -> Iterator[str]:
    """Say what to type for the best job alone, and where its run lies, if a figure tells which."""
    figures, name, order = _ranked(results)
    without_figure, _ = rank(figures[order[0]].get(f"best/{name}"), "max") if order else (True, 0.0)
    if not without_figure:
        best = order[0]
        yield f"best: {_typed(swept[best])}"
        yield from _left_out(swept[best])
        yield f"its run: {figures[best]['run_dir']}"


def _typed(overrides: Sequence[str]) -> str:
    """The command line of a job, as a shell takes it."""
    return masked(f"{program_of('train')} {shlex.join(overrides)}")


def _left_out(overrides: Sequence[str]) -> Iterator[str]:
    if MASK in masked(" ".join(overrides)):
        yield f"  ({MASK} stands for a password, which is to be typed again)"


def expand(texts: Sequence[str], composer: Composer) -> list[list[str]]:
    """List the overrides of every job: the product of the swept values.

    Raises:
        ConfigError: Overrides that cannot be read.
    """
    parsed, problems = [], []
    for text in texts:
        try:
            override = composer.parse(text)
        except HydraException:
            problems.append(Problem(text.split("=")[0], f"{text!r} cannot be read"))
            continue
        override.config_loader = composer.loader
        if override.is_sweep_override() and not override.is_discrete_sweep():
            problems.append(Problem(override.key_or_group, "an interval has no end of values; "
                                    "type range(0,1,0.1), name the values, or search in it: "
                                    "hydra/sweeper=optuna"))  # fmt: skip
        parsed.append(override)
    if problems:
        raise ConfigError(problems)
    [jobs] = BasicSweeper.split_arguments(parsed, None)
    return [[_delete(text) for text in job] for job in jobs]


def _delete(text: str) -> str:
    return text.removesuffix("=null") if text.startswith("~") else text


def check_jobs(
    swept: Sequence[Sequence[str]], composer: Composer, *, command: str | None = None
) -> list[Job]:
    """Check every job of a sweep.

    Args:
        swept: The overrides of each.
        composer: Groups and options.
        command: The command whose settings stand under its name, or None.

    Raises:
        ConfigError: With the mistakes of all of them, each once.
    """
    jobs: list[Job] = []
    problems: list[Problem] = []
    for overrides in swept:
        try:
            jobs.append(read_job(overrides, composer, command=command))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return jobs


def _master(settings: list[str], composer: Composer) -> DictConfig:
    """Compose the config that holds the launcher: it may name launchers and nothing else."""
    unknown = parse(settings, composer).problems
    if unknown:
        raise ConfigError(unknown)
    try:
        with base_version():
            setup_globals()
            master = composer.loader.load_configuration(
                ROOT_CONFIG, settings, run_mode=RunMode.MULTIRUN, validate_sweep_overrides=False
            )
    except HydraException as error:
        text = " ".join(str(error).split("\nConfig search path:")[0].split())
        for launcher, extra in _EXTRAS.items():
            if f"hydra/launcher={launcher}" in settings and f"'hydra/launcher/{launcher}'" in text:
                text = (
                    f"the package hydra-{extra}-launcher is missing (the extra {extra}); run: "
                    f"pip install 'hydra-{extra}-launcher>=1.2'"
                )
        raise ConfigError([Problem("hydra/launcher", text)]) from error
    problems = [
        Problem(f"hydra.{key}._target_", f"{target!r} is no launcher or sweeper of Hydra's")
        for key, target in _targets(OmegaConf.to_container(master.hydra, resolve=False))
        if not target.startswith((*_PLUGINS, SAMPLERS))
    ]
    sweeper = master.hydra.sweeper.get("_target_")
    basic = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"
    if sweeper != basic and SEARCHES not in str(sweeper):
        problems.append(Problem("hydra/sweeper", f"{sweeper} given, accepts basic or optuna"))
    if master.hydra.sweeper.get("custom_search_space"):
        problems.append(
            Problem(
                "hydra.sweeper.custom_search_space",
                "only null is accepted; type "
                "what is searched as overrides: 'optimizer.lr=interval(0.001,0.1)'",
            )
        )
    if problems:
        raise ConfigError(problems)
    with open_dict(master):
        # The launchers log how many jobs they start; a table says more.
        here = machine_folder("sweeps") if is_url(master.outputs) else master.outputs
        master.hydra.sweep.dir = str(here)
        launcher = master.hydra.launcher
        given = any("submitit_folder" in text for text in settings)
        if "submitit_folder" in launcher and not given:
            launcher.submitit_folder = f"{here}/.submitit/%j"
    return master


def _targets(node: Any, key: str = "") -> list[tuple[str, str]]:
    if not isinstance(node, dict):
        return []
    found = [(key, str(node["_target_"]))] if "_target_" in node else []
    # The logging configs of Python call what stands under "()" and "class".
    found += [(key, str(node[name])) for name in ("()", "class") if name in node]
    for name, value in node.items():
        found += _targets(value, f"{key}.{name}" if key else str(name))
    return found


def _launch(
    master: DictConfig,
    jobs: Sequence[Job],
    composer: Composer,
    job: str,
    finished: list[Any],
    search: Search | None,
) -> list[dict[str, Any] | BaseException]:
    """Hand the jobs to the launcher; return what each returned or raised, in order.

    Those that have run in this process are in `finished` too, also where it is interrupted.
    """
    from hydra._internal.callbacks import Callbacks
    from hydra.core.plugins import Plugins
    from hydra.core.utils import JobRuntime
    from hydra.types import HydraContext

    def note(config: DictConfig, *, run: Callable[[DictConfig], Any]) -> Any:
        try:
            finished.append(run(config))
        except Exception as error:
            finished.append(error)
            raise
        return finished[-1]

    # Children of a launcher find the project where this process has found it.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    JobRuntime.instance().set("name", "penstock")
    before = HydraConfig.instance().cfg
    # Where the user's files have been imported from.
    paths = tuple(path for path in sys.path if path and Path(path).is_dir())
    run = functools.partial(run_job, job=job, search=paths)
    with base_version():
        context = HydraContext(config_loader=composer.loader, callbacks=Callbacks())
        known: Any = {"hydra_context": context, "config": master}
        try:
            if search is not None:
                sweeper = Plugins.instance().instantiate_sweeper(task_function=run, **known)
                return search.run(sweeper)
            launcher = Plugins.instance().instantiate_launcher(
                task_function=functools.partial(note, run=run), **known
            )
            returns = launcher.launch([list(read.overrides) for read in jobs], 0)
        finally:
            HydraConfig.instance().cfg = before
    return [result_of(returned) for returned in returns]


def run_job(config: DictConfig, *, job: str, search: tuple[str, ...] = ()) -> Any:
    """Run one job of a sweep: what a launcher calls, perhaps in another process.

    Args:
        config: The job's config as Hydra has composed it.
        job: Dotted path of the job.
        search: Folders that the launching process imports from.
    """
    sys.path.extend(path for path in search if path not in sys.path)
    if is_first_rank():
        hydra = HydraConfig.get()
        typed = " ".join(text.lstrip("+") for text in hydra.overrides.task)
        with suppress(BrokenPipeError):  # nobody reads any more: the job's own lines will end it
            print(f"job {hydra.job.num}: {masked(typed)}", flush=True)
    register_components(list(config.get("imports") or ()))
    return pkgutil.resolve_name(job)(check_config(config))


def print_table(
    swept: Sequence[Sequence[str]], results: Sequence[Mapping[str, Any] | BaseException | Any]
) -> None:
    """Print what each job was and what came out of it, the best first.

    Args:
        swept: Overrides of each job.
        results: What each returned, a mapping of figures, or the exception that ended it. What
            the figure is that decides, ``monitor`` says; without it all numbers are shown.
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    figures, name, order = _ranked(results)
    names = {f"best {name}": f"best/{name}", "of epoch": "best_epoch", "last": f"val/{name}"}
    if name is None:
        names = {k: k for each in figures for k, v in each.items() if isinstance(v, int | float)}
    keys = varied_keys(swept)
    last = [key.rpartition(".")[2] for key in keys]
    short = [end if last.count(end) == 1 else key for end, key in zip(last, keys, strict=True)]
    count = "1 job" if len(results) == 1 else f"{len(results)} jobs"
    table = Table(title=f"{count}, the best first" if name else count, box=SIMPLE)
    for heading in ["job", *short]:
        table.add_column(heading, overflow="fold")
    for heading in names:
        table.add_column(heading, justify="right")
    for number in order:
        values = dict(split_override(text) for text in swept[number])
        row = [str(number), *(values.get(key, "") for key in keys)]
        table.add_row(*row, *(figure(figures[number].get(name)) for name in names.values()))
    console = Console()
    # Where nobody looks at a window's width, no column is folded away.
    Console(width=None if console.is_terminal else 200).print(table)
    for number, result in enumerate(results):
        if isinstance(result, BaseException):
            print(f"job {number} failed: {_error(result)}")


def _ranked(results: Sequence[Any]) -> tuple[list[Mapping[str, Any]], str | None, list[int]]:
    """The figures of each job, the name of the one that decides, and the jobs, the best first."""
    figures = [result if isinstance(result, Mapping) else {} for result in results]
    told = next((each for each in figures if "monitor" in each), {})
    name, mode = told.get("monitor"), told.get("monitor_mode", "max")
    places = [rank(each.get(f"best/{name}"), mode) for each in figures]
    return figures, name, sorted(range(len(figures)), key=places.__getitem__)


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {in_one_line(error) or error}".splitlines()[0]


def _write_csv(swept: Sequence[Sequence[str]], results: Sequence[Any], outputs: str) -> str:
    """Write every override and every figure of all jobs to a file beside their runs."""
    rows: list[dict[str, Any]] = []
    for number, (overrides, result) in enumerate(zip(swept, results, strict=True)):
        row = {"job": number, **dict(split_override(text) for text in overrides)}
        error = {"error": _error(result)} if isinstance(result, BaseException) else {}
        rows.append({**row, **(result if isinstance(result, Mapping) else error)})
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    name = datetime.now().strftime("%Y-%m-%d/sweep-%H-%M-%S.csv")
    if is_url(outputs):
        from penstock.datasets.files.clients import ask

        url, content = absolute_path(outputs), text.getvalue().encode()
        ask(url, lambda client: client.put(name, content), name)
        return f"{url}/{name}"
    file = Path(outputs) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text.getvalue())
    return str(file)


def split_override(text: str) -> tuple[str, str]:
    """Split an override into key and value, as it is shown."""
    key, _, value = masked(text).partition("=")
    return key.lstrip("+"), value


def varied_keys(swept: Sequence[Sequence[str]]) -> list[str]:
    """List the keys whose values differ between jobs; all of them if there is one job."""
    values: dict[str, set[str]] = {}
    for overrides in swept:
        for text in overrides:
            key, value = split_override(text)
            values.setdefault(key, set()).add(value)
    return [key for key, found in values.items() if len(found) > 1 or len(swept) == 1]


def figure(value: Any) -> str:
    """Write a figure for a table; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Point:
    """One of the configurations.

    Attributes:
        overrides: As typed, of the swept ones the value that is this point's.
        values: Values by key, of the swept keys.
        config: The plain, checked config.
    """

    overrides: tuple[str, ...]
    values: dict[str, str]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Points:
    """The configurations that a command line describes, all of them checked.

    Attributes:
        points: In the order in which they were typed; one, if nothing was swept.
        keys: The swept keys.
    """

    points: tuple[Point, ...]
    keys: tuple[str, ...]
    _composer: Composer
    _command: str

    def config_with(self, *overrides: str) -> dict[str, Any]:
        """Compose the config of the first point with more overrides, as if they had been typed too.

        Raises:
            ConfigError: They do not fit this configuration.
        """
        texts = [quote(text, self._composer) for text in overrides]
        texts = [*self.points[0].overrides, *texts]
        return read_job(texts, self._composer, command=self._command).config


def read_points(texts: Sequence[str], composer: Composer, *, command: str) -> Points:
    """Read and check what was typed: ``loader.num_workers=0,1,2`` makes three points.

    Args:
        texts: Overrides as typed.
        composer: Groups and options.
        command: The command whose settings stand under its name; they cannot be swept.

    Raises:
        ConfigError: With the mistakes of all points.
    """
    swept = expand([quote(text, composer, sweep=True) for text in texts], composer)
    jobs = check_jobs(swept, composer, command=command)
    keys = varied_keys(swept) if len(swept) > 1 else []
    settings = {f"{command}.{name}" for name in jobs[0].config[command]}
    problems = [
        Problem(key, "all points are measured in the same way; give one value")
        for key in keys
        if key in settings or f"{command}.{key}" in settings
    ]
    if len(keys) > 2:
        problems.append(Problem(keys[2], f"{len(keys)} keys are swept ({', '.join(keys)}), a table "
                                "and a plot have two; give one value to the others"))  # fmt: skip
    if problems:
        raise ConfigError(problems)
    points = []
    for overrides, job in zip(swept, jobs, strict=True):
        values = dict(split_override(text) for text in overrides)
        named = {key: values.get(key, "") for key in keys}
        points.append(Point(tuple(overrides), named, job.config))
    return Points(tuple(points), tuple(keys), composer, command)

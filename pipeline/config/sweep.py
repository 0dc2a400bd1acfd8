"""Sweeps: every job checked before the first runs, and a table of what came out."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from pipeline.blame import is_explained
from pipeline.config.composition import (
    ROOT,
    ROOT_CONFIG,
    BasicSweeper,
    Composer,
    HydraException,
    base_version,
    setup_globals,
)
from pipeline.config.errors import ConfigError, Problem
from pipeline.config.job import Job, check_config, locate, read_job
from pipeline.config.overrides import parse
from pipeline.config.printing import print_config
from pipeline.config.quoting import quote

_KEYS = ("hydra.", "hydra/")
_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")


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
    swept = expand([text for text in quoted if text not in settings], composer)
    jobs = check_jobs(swept, composer)
    master = _master(settings, composer)
    if show_only:
        for overrides, read in zip(swept, jobs, strict=True):
            print(f"# {' '.join(overrides)}")
            print_config(read.config)
            print("---")
        return 0
    results = _launch(master, jobs, composer, job)
    from pipeline.config.table import failed_jobs, print_table

    if prints:
        print_table(swept, results)
    return 1 if failed_jobs(results) else 0


def expand(texts: Sequence[str], composer: Composer) -> list[list[str]]:
    """The overrides of every job: the product of the swept values.

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
                                    "type range(0,1,0.1) or name the values"))  # fmt: skip
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
    """The config that holds the launcher, checked: it may name launchers and nothing else."""
    unknown = parse(settings, composer).problems
    if unknown:
        raise ConfigError(unknown)
    try:
        with base_version():
            setup_globals()
            master = composer.loader.load_configuration(
                ROOT_CONFIG, settings, run_mode=_multirun(), validate_sweep_overrides=False
            )
    except HydraException as error:
        text = " ".join(str(error).split("\nConfig search path:")[0].split())
        raise ConfigError([Problem("hydra/launcher", text)]) from error
    problems = [
        Problem(f"hydra.{key}._target_", f"{target!r} is no launcher or sweeper of Hydra's")
        for key, target in _targets(OmegaConf.to_container(master.hydra, resolve=False))
        if not target.startswith(_PLUGINS)
    ]
    sweeper = master.hydra.sweeper.get("_target_")
    if sweeper != f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}":
        problems.append(Problem("hydra/sweeper", f"{sweeper} given, accepts basic alone"))
    if problems:
        raise ConfigError(problems)
    with open_dict(master):
        # The launchers log how many jobs they start; a table says more.
        master.hydra.sweep.dir = master.outputs
        launcher = master.hydra.launcher
        if "submitit_folder" in launcher and not _given(settings, "submitit_folder"):
            launcher.submitit_folder = f"{master.outputs}/.submitit/%j"
    return master


def _multirun() -> Any:
    from hydra.types import RunMode

    return RunMode.MULTIRUN


def _given(settings: Sequence[str], name: str) -> bool:
    return any(name in text for text in settings)


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
    master: DictConfig, jobs: Sequence[Job], composer: Composer, job: str
) -> list[dict[str, Any] | BaseException]:
    """Hand the jobs to the launcher; what each returned or raised, in order."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.plugins import Plugins
    from hydra.core.utils import JobReturn, JobRuntime, JobStatus
    from hydra.types import HydraContext

    # Children of a launcher find the project where this process has found it.
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    JobRuntime.instance().set("name", "penstock")
    before = HydraConfig.instance().cfg
    with base_version():
        context = HydraContext(config_loader=composer.loader, callbacks=Callbacks())
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context,
            task_function=functools.partial(run_job, job=job, search=_search_paths()),
            config=master,
        )
        try:
            returns = launcher.launch([list(read.overrides) for read in jobs], 0)
        finally:
            HydraConfig.instance().cfg = before
    results: list[dict[str, Any] | BaseException] = []
    for returned in returns:
        assert isinstance(returned, JobReturn)
        value = returned._return_value
        # The table has the line of an explained error.
        if returned.status is not JobStatus.COMPLETED and not is_explained(value):
            traceback.print_exception(value, file=sys.stderr)
        results.append(value)
    return results


def _search_paths() -> tuple[str, ...]:
    """Where the user's files have been imported from."""
    return tuple(path for path in sys.path if path and Path(path).is_dir())


def run_job(config: DictConfig, *, job: str, search: tuple[str, ...] = ()) -> Any:
    """Run one job of a sweep: what a launcher calls, perhaps in another process.

    Args:
        config: The job's config as Hydra has composed it.
        job: Dotted path of the job.
        search: Folders that the launching process imports from.
    """
    from pipeline.config.discovery import load_all

    sys.path.extend(path for path in search if path not in sys.path)
    load_all(list(config.get("imports") or ()))
    return locate(job)(check_config(config))

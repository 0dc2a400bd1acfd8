"""Sweeps: checked before anything starts, then run by Hydra's multirun, launchers and sweepers."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from penstock.core.files import machine_folder
from penstock.core.user_errors import ExplainedError, Problem, in_one_line, program_of
from penstock.datasets.files.access import is_url
from penstock.datasets.files.passwords import masked
from penstock.pipeline.config.compose import (
    FAILURES,
    checked,
    choose,
    compose_texts,
    configure,
    one_line,
    prepare,
)
from penstock.pipeline.config.errors import ConfigError, is_first_rank
from penstock.pipeline.config.options import CONF, options_of
from penstock.pipeline.config.overrides import parse, quote, read_overrides, values_of

JOB = "penstock.pipeline.training.job.train"
_WATCHED = "penstock.pipeline.training.job.watched"
_OPTUNA = "hydra/sweeper=optuna"
_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit",
           "optuna": "optuna"}  # fmt: skip


def sweep(texts: Sequence[str]) -> None:
    """Run a job for each combination of values; a job that fails does not end the others.

    Raises:
        ConfigError: A mistake in an override; no job has started.
    """
    settings = [text for text in texts if text.lstrip("+~").startswith(("hydra.", "hydra/"))]
    _refuse_wrong_settings(settings)
    config = check_sweep([text for text in texts if text not in settings], _OPTUNA in settings)
    if masked(" ".join(texts)) != " ".join(texts):
        raise ConfigError([Problem("", "a sweep writes its overrides to a file, and one of them "
                                   "holds a password; take it from the environment: "
                                   "${oc.env:NAME}")])  # fmt: skip
    typed, problems = read_overrides(texts, sweep=True)
    _, appended = choose([each for each in typed if each.group and each.options], [])
    plus = {each.text for each in appended if each.hydra.startswith("+")}
    arguments = [
        f"+{each.hydra}" if each.text in plus and each.hydra[0] != "+" else each.hydra
        for each in typed
    ]
    if problems:
        raise ConfigError(problems)
    here = machine_folder("sweeps") if is_url(config["outputs"]) else f"{config['outputs']}/sweeps"
    arguments.append(str(quote(f"hydra.sweep.dir={here}")))
    if _OPTUNA in settings:
        arguments += _search_settings(settings, config)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors over and does not print them
    # Children of a launcher find the project and the user's files where this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    sys.argv[1:] = ["--multirun", *arguments]
    hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(run_job)()
    if is_first_rank():
        print(f"to compare the runs: {program_of('runs')}")


def run_job(config: DictConfig) -> Any:
    """Run one job of a sweep, perhaps in a process of a launcher's.

    Returns:
        The watched metric if Optuna searches; otherwise the results of `fit`.
    """
    prepare([f"imports={[str(name) for name in config.get('imports') or ()]}"])
    running = HydraConfig.get()
    if is_first_rank():
        typed = " ".join(text.lstrip("+") for text in running.overrides.task)
        with suppress(BrokenPipeError):  # the job's own lines end it
            print(f"job {running.job.num}: {typed}", flush=True)
    try:
        results = pkgutil.resolve_name(JOB)(checked(config, ()))
    except Exception as error:
        line = in_one_line(error)
        said = f"job {running.job.num} failed: {line or f'{type(error).__name__}: {error}'}"
        if is_first_rank():
            print(said, file=sys.stderr, flush=True)
        if line is None:
            raise
        raise ExplainedError(said) from error  # a launcher's pickle would lose its traceback
    if "optuna" in str(running.sweeper.get("_target_")):
        return results[f"best/{results['monitor']}"]
    return results


def check_sweep(texts: Sequence[str], searches: bool = False) -> dict[str, Any]:
    """Check a sweep by jobs that have each value at least once.

    Args:
        texts: Overrides as typed.
        searches: A sweeper searches, so intervals are accepted.

    Returns:
        The config of the first job.

    Raises:
        ConfigError: With the mistakes of all of them, each once.
    """
    values = values_typed(texts, searches=searches)
    first = [each[0] for each in values]
    jobs = [first]
    for place, each in enumerate(values):
        jobs += [[*first[:place], other, *first[place + 1 :]] for other in each[1:]]
    if searches and len(jobs) == 1 and not any("interval" in text for text in texts):
        remedy = "type an interval, 'optimizer.lr=interval(0.001,0.1)', or values, seed=1,2"
        raise ConfigError([Problem("hydra/sweeper", f"nothing is searched; {remedy}")])
    return configs_of(jobs)[0]


def values_typed(texts: Sequence[str], *, searches: bool = False) -> list[list[str]]:
    """List the overrides that each text stands for: one, or one for each of its values."""
    found: list[list[str]] = []
    problems: list[Problem] = []
    for text in texts:
        quoted = quote(text, sweep=True)
        try:
            override = parse(quoted)
        except Exception:  # reported with all overrides
            found.append([text])
            continue
        if not override.is_sweep_override():
            found.append([text])
            continue
        if not override.is_discrete_sweep() and not searches:
            problems.append(Problem(override.key_or_group, "an interval cannot be listed; type "
                                    "range(0,1,0.1), name the values, or search in it: "
                                    "hydra/sweeper=optuna"))  # fmt: skip
            continue
        key = quoted.partition("=")[0]
        values = values_of(override, options_of(override.key_or_group))
        found.append([f"{key}={value}" for value in values])
    if problems:
        raise ConfigError(problems)
    return found


def configs_of(jobs: Sequence[Sequence[str]], command: str | None = None) -> list[dict[str, Any]]:
    """Compose a config for each job, and report the mistakes of all of them at once."""
    configs: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for job in jobs:
        try:
            configs.append(configure(job, command=command))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return configs


def _refuse_wrong_settings(settings: Sequence[str]) -> None:
    """Let Hydra compose the settings of its launcher and sweeper, choices of plug-ins first."""
    settings = sorted(settings, key=lambda text: "/" not in text.partition("=")[0])
    for count, text in enumerate(settings, 1):
        key = text.lstrip("+~").partition("=")[0]
        if key.endswith("._target_"):
            choice = key.removesuffix("._target_").replace(".", "/")
            what = f"a target cannot be given; choose a plug-in of Hydra's, type {choice}=<name>"
            raise ConfigError([Problem(key, what)])
        try:
            compose_texts([quote(each) for each in settings[:count]], with_hydra=True)
        except FAILURES as error:
            said = one_line(error)
            if (extra := _EXTRAS.get(text.lstrip("+").partition("=")[2])) and "/" in key:
                said += f"; the extra {extra} is missing: pip install hydra-{extra}-{key[6:]}"
            raise ConfigError([Problem(key, said)]) from error


def _search_settings(settings: Sequence[str], config: dict[str, Any]) -> list[str]:
    """Set what Optuna cannot know: which direction is better, and that failures are borne."""
    name, better = pkgutil.resolve_name(_WATCHED)(config)
    typed = {text.partition("=")[0]: text.partition("=")[2] for text in settings}
    wanted = f"{better}imize"
    if typed.get("hydra.sweeper.direction", wanted) != wanted:
        other = "min" if better == "max" else "max"
        raise ConfigError([Problem("hydra.sweeper.direction", f"{typed['hydra.sweeper.direction']} "
                                   f"given, but {name} is to be {wanted}d; leave it away, or type "
                                   f"trainer.monitor_mode={other}")])  # fmt: skip
    own = {
        "hydra.sweeper.direction": wanted, "hydra.sweeper.max_failure_rate": "1.0",
        "hydra.sweeper.sampler.seed": str(config["seed"]), "hydra.sweeper.n_jobs": "1",
    }  # fmt: skip
    return [f"{key}={value}" for key, value in own.items() if key not in typed]

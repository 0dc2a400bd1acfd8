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
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from penstock.core.files import machine_folder
from penstock.core.user_errors import ExplainedError, Problem, in_one_line
from penstock.datasets.files.access import is_url
from penstock.datasets.files.passwords import masked
from penstock.pipeline.config.compose import checked, configure, one_line, prepare
from penstock.pipeline.config.errors import ConfigError, is_first_rank
from penstock.pipeline.config.options import CONF, options_of
from penstock.pipeline.config.overrides import parse, quote, read_overrides
from penstock.pipeline.config.schema import UNKNOWN, check_libraries

JOB = "penstock.pipeline.training.job.train"
_OPTUNA, _SEARCH = "hydra/sweeper=optuna", "hydra.sweeper."
_PLUGINS = "hydra-joblib-launcher, hydra-submitit-launcher, hydra-optuna-sweeper"


def sweep(texts: Sequence[str]) -> None:
    """Run a job for each combination of values; a job that fails does not end the others.

    Raises:
        ConfigError: A mistake in an override; no job has started.
    """
    settings = [text for text in texts if text.lstrip("+~").startswith(("hydra.", "hydra/"))]
    for key in (text.lstrip("+~").partition("=")[0] for text in settings):
        if key.endswith("._target_"):  # a config may call nothing but registered components
            raise ConfigError([Problem(key, "choose a plug-in of Hydra's: hydra/launcher=<name>")])
    texts = [text for text in texts if text not in settings]
    config = check_sweep(texts, _OPTUNA in settings)
    if masked(" ".join(texts)) != " ".join(texts):
        raise ConfigError([Problem("", "a sweep writes its overrides to a file, and one of them "
                                   "holds a password; take it from the environment: "
                                   "${oc.env:NAME}")])  # fmt: skip
    here = machine_folder("sweeps") if is_url(config["outputs"]) else f"{config['outputs']}/sweeps"
    arguments = [*map(quote, settings), quote(f"hydra.sweep.dir={here}"), *_arguments(texts)]
    if _OPTUNA in settings:
        arguments += _search_settings(settings, config)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors over and does not print them
    # Children of a launcher find the project and the user's files where this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    try:
        run_hydra(["--multirun", *arguments])
    except HydraException as error:
        said = one_line(error)
        lacks = f"; plug-ins to install: {_PLUGINS}" if "Could not find" in said else ""
        raise ConfigError([Problem("", said + lacks)]) from error
    if is_first_rank():
        print("to compare the runs: penstock runs")


def _arguments(texts: Sequence[str]) -> list[str]:
    """Write the overrides of the first job for Hydra, each with all its values."""
    first = [each[0] for each in values_typed(texts, searches=True)]
    swept = {one: quote(text, sweep=True).partition("=")[2]
             for one, text in zip(first, texts, strict=True) if one != text}  # fmt: skip
    return [
        f"{each.hydra.partition('=')[0]}={swept[each.text]}" if each.text in swept else each.hydra
        for each in read_overrides(first)[0]
    ]


def run_hydra(arguments: Sequence[str]) -> None:
    """Run Hydra's own program, whose jobs are `run_job`."""
    sys.argv[1:] = arguments
    hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(run_job)()


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
    if searches and len(jobs) == 1:
        remedy = "type an interval, 'optimizer.lr=interval(0.001,0.1)', or values, seed=1,2"
        raise ConfigError([Problem("hydra/sweeper", f"nothing is searched; {remedy}")])
    return configs_of(jobs)[0]


def values_typed(texts: Sequence[str], *, searches: bool = False) -> list[list[str]]:
    """List the overrides that each text stands for: one, or one for each of its values."""
    found: list[list[str]] = []
    for text in texts:
        quoted, values = quote(text, sweep=True), [text]
        with suppress(HydraException):  # reported with all overrides
            if (override := parse(quoted)).is_sweep_override():
                swept = _values_swept(override, searches=searches)
                values = [f"{quoted.partition('=')[0]}={one}" for one in swept]
        found.append(values)
    return found


def _values_swept(override: Override, *, searches: bool) -> list[Any]:
    """List the values of a sweep; the ends of an interval."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, Glob):
        found: list[Any] = value.filter(options_of(key))
    elif override.is_discrete_sweep():
        found = list(override.sweep_string_iterator())
    elif searches and isinstance(value, IntervalSweep):
        found = [value.start, value.end]
    else:
        what = "an interval cannot be listed; type range(0,1,0.1), name the values, or"
        raise ConfigError([Problem(key, f"{what} search in it: {_OPTUNA}")])
    if not found:
        what = f"{override.get_value_string()} given, which stands for no value"
        raise ConfigError([Problem(key, f"{what}; name the values, as in {key}=a,b")])
    return found


def configs_of(jobs: Sequence[Sequence[str]], command: str | None = None) -> list[dict[str, Any]]:
    """Compose a config for each job, and report the mistakes of all, an unknown key once."""
    configs: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for job in jobs:
        try:
            configs.append(configure(job, command=command))
        except ConfigError as error:
            problems += error.problems
    if not problems:
        problems = [problem for config in configs for problem in check_libraries(config)]
    if problems:
        unknown = {each.key: each for each in reversed(problems) if UNKNOWN in each.message}
        raise ConfigError(unknown.get(each.key, each) for each in problems)
    return configs


def _search_settings(settings: Sequence[str], config: dict[str, Any]) -> list[str]:
    """Set what Optuna cannot know: which direction is better, and that failures are borne."""
    name, better = pkgutil.resolve_name("penstock.pipeline.training.job.watched")(config)
    typed = {text.partition("=")[0].removeprefix(_SEARCH) for text in settings}
    if "direction" in typed:
        what = f"{name} is to be {better}imized; leave it away, or type trainer.monitor_mode=..."
        raise ConfigError([Problem(f"{_SEARCH}direction", what)])
    own = {"direction": f"{better}imize", "max_failure_rate": 1.0, "sampler.seed": config["seed"],
           "n_jobs": 1}  # fmt: skip
    return [f"{_SEARCH}{name}={value}" for name, value in own.items() if name not in typed]

"""Search values by Optuna: ``-m hydra/sweeper=optuna 'optimizer.lr=interval(0.001,0.1)'``."""

from __future__ import annotations

import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hydra.core.override_parser.types import IntervalSweep
from omegaconf import DictConfig, open_dict

from penstock.core.user_errors import in_one_line
from penstock.pipeline.config.composition import Composer, HydraException, Override
from penstock.pipeline.config.errors import ConfigError, Problem
from penstock.pipeline.config.job import read_job

_CHOICE = "hydra/sweeper=optuna"
SEARCHES = "hydra_optuna_sweeper"
"""What the target of Hydra's sweeper by Optuna has in its name."""
SAMPLERS = "optuna.samplers."
"""Where the samplers lie that it may be given."""


def is_search(settings: Sequence[str]) -> bool:
    """Tell whether the overrides of Hydra's own config choose Optuna.

    Raises:
        ConfigError: They do, and it is not installed.
    """
    if _CHOICE not in settings:
        return False
    if find_spec("hydra_plugins") is None or find_spec(f"hydra_plugins.{SEARCHES}") is None:
        raise ConfigError([
            Problem("hydra/sweeper", "the package hydra-optuna-sweeper is missing (the extra "
                    "optuna); run: pip install 'hydra-optuna-sweeper>=1.3'")
        ])  # fmt: skip
    return True


class Search:
    """The jobs that Optuna proposes, one after the other, and what came out of them.

    Args:
        texts: Overrides, quoted, of which some have several values or an interval.
        composer: Groups and options.

    Attributes:
        samples: Overrides of jobs that have each value, and the ends of each interval, at least
            once: where these are right, all are that do not depend on one another.
        launched: The overrides of the jobs that have been run.
        results: What each returned, or the exception that ended it.

    Raises:
        ConfigError: An override cannot be read, or nothing is searched.
    """

    def __init__(self, texts: Sequence[str], composer: Composer) -> None:
        self._composer = composer
        self._fixed: list[str] = []
        self._searched: list[str] = []
        self.launched: list[list[str]] = []
        self.results: list[Any] = []
        self._better = "max"
        values: dict[str, list[str]] = {}
        for text in texts:
            try:
                override = composer.parse(text)
            except HydraException as error:
                problem = Problem(text.split("=")[0], f"{text!r} cannot be read")
                raise ConfigError([problem]) from error
            override.config_loader = composer.loader
            if override.is_sweep_override():
                self._searched.append(text)
                values[override.get_key_element()] = [*_values(override)]
            else:
                self._fixed.append(text)
        if not values:
            remedy = "type an interval, 'optimizer.lr=interval(0.001,0.1)', or values, seed=1,2"
            raise ConfigError([Problem("hydra/sweeper", f"nothing is searched; {remedy}")])
        first = {key: found[0] for key, found in values.items()}
        points = [first] + [{**first, k: each} for k, found in values.items() for each in found[1:]]
        self.samples = [
            [*self._fixed, *(f"{key}={value}" for key, value in point.items())] for point in points
        ]

    def prepare(
        self, master: DictConfig, settings: Sequence[str], config: Mapping[str, Any], job: str
    ) -> None:
        """Set what Optuna need not be told by the user.

        Args:
            master: Hydra's config; changed.
            settings: What was typed of it.
            config: The config of a job.
            job: Dotted path of the job, beside which ``watched`` tells the figure that decides,
                and whether ``max`` or ``min`` of it is better.
        """
        name, self._better = pkgutil.resolve_name(f"{job.rpartition('.')[0]}.watched")(config)
        sweeper, typed = master.hydra.sweeper, {text.split("=")[0] for text in settings}
        if "hydra.sweeper.direction" in typed:
            self._refuse_other_direction(str(sweeper.direction), name)
        with open_dict(master):
            sweeper.direction = f"{self._better}imize"
            if "hydra.sweeper.max_failure_rate" not in typed:  # as in every sweep
                sweeper.max_failure_rate = 1.0
            if "hydra.sweeper.n_jobs" not in typed and master.hydra.launcher._target_.endswith(
                ".BasicLauncher"
            ):  # one job at a time, so each may learn from the one before
                sweeper.n_jobs = 1
            if "seed" in sweeper.sampler and sweeper.sampler.seed is None:
                sweeper.sampler.seed = config["seed"]

    def _refuse_other_direction(self, typed: str, name: str) -> None:
        if not typed.endswith(f"{self._better}imize"):
            text = f"{typed} given, and of {name} {self._better}imize is better; leave it away"
            text += f", or type trainer.monitor_mode={'min' if self._better == 'max' else 'max'}"
            raise ConfigError([Problem("hydra.sweeper.direction", text)])

    def run(self, sweeper: Any) -> list[Any]:
        """Run the jobs; return what each returned, or the exception that ended it."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        own = sweeper.sweeper
        own.launcher = _Launcher(own.launcher, self)
        with tempfile.TemporaryDirectory() as folder:  # for a file that the table says more than
            own.config = own.config.copy()
            own.config.hydra.sweep.dir = folder
            try:
                sweeper.sweep(self._searched)
            except ValueError:
                # Optuna looks for the best of its trials, and there may be none.
                if any(isinstance(result, Mapping) for result in self.results):
                    raise
        return self.results

    def launch(
        self, launch: Callable[..., Sequence[Any]], proposed: Sequence[Sequence[str]], start: int
    ) -> Sequence[Any]:
        """Run some jobs and give Optuna the figure that decides."""
        from hydra.core.utils import JobStatus

        jobs = [[*self._fixed, *values] for values in proposed]
        read = [list(read_job(overrides, self._composer).overrides) for overrides in jobs]
        self.launched += jobs
        try:
            returns = launch(read, initial_job_idx=start)
        except BaseException:
            self.results += [{} for _ in jobs]
            raise
        for returned in returns:
            result = result_of(returned)
            self.results.append(result)
            if returned.status is JobStatus.COMPLETED:
                name, mode = result.get("monitor"), result.get("monitor_mode")
                if mode != self._better:  # the task could not tell its figures without data
                    raise ValueError(
                        f"hydra/sweeper: of {name} {mode}imize is better, and the search took "
                        f"{self._better}imize; type trainer.monitor={name}"
                    )
                returned.return_value = result.get(f"best/{name}")
        return returns


class _Launcher:
    """Launches what a search proposes, in the place of Hydra's launcher."""

    def __init__(self, launcher: Any, search: Search) -> None:
        self._launcher, self._search = launcher, search

    def launch(self, overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        return self._search.launch(self._launcher.launch, overrides, initial_job_idx)


def _values(override: Override) -> Iterator[str]:
    """The values of a sweep as they are typed, or the ends of its interval."""
    from hydra.core.override_parser.types import Transformer

    value = override.value()
    if isinstance(value, IntervalSweep):
        yield from (str(value.start), str(value.end))
    else:
        yield from map(str, override.sweep_iterator(transformer=Transformer.encode))


def result_of(returned: Any) -> Any:
    """Take what a job returned, or the exception that ended it, whose traceback is printed."""
    from hydra.core.utils import JobReturn, JobStatus

    assert isinstance(returned, JobReturn)
    value = returned._return_value
    # The table has the line of an explained error.
    if returned.status is not JobStatus.COMPLETED and in_one_line(value) is None:
        traceback.print_exception(value, file=sys.stderr)
    return value

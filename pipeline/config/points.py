"""What was typed for a command that measures several configurations in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.composition import Composer
from pipeline.config.errors import ConfigError, Problem
from pipeline.config.job import read_job
from pipeline.config.quoting import quote
from pipeline.config.sweep import check_jobs, expand
from pipeline.config.table import split_override, varied_keys


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
        """The config of the first point with more overrides, as if they had been typed too.

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

"""The configurations that ``penstock bench`` measures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.user_errors import Problem
from penstock.pipeline.config.compose import configure
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.overrides import settings_of
from penstock.pipeline.config.sweep import configs_of, values_typed


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration that a command measures.

    Attributes:
        overrides: As typed; of a swept override the value of this point.
        values: The values of the swept keys.
        config: The plain, checked config.
    """

    overrides: tuple[str, ...]
    values: dict[str, str]
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Points:
    """All configurations that a command line describes.

    Attributes:
        points: In the order in which they were typed; one, if nothing is swept.
        keys: The swept keys.
        command: The command.
    """

    points: tuple[Point, ...]
    keys: tuple[str, ...]
    command: str

    @property
    def config(self) -> dict[str, Any]:
        """The config of the first point."""
        return self.points[0].config

    def config_with(self, *overrides: str) -> dict[str, Any]:
        """Compose the config of the first point with more overrides.

        Raises:
            ConfigError: They do not fit this configuration.
        """
        return configure([*self.points[0].overrides, *overrides], command=self.command)


def read_points(texts: Sequence[str], *, command: str) -> Points:
    """Read and check the points of a command: ``loader.num_workers=0,1,2`` makes three.

    Raises:
        ConfigError: With the mistakes of all points.
    """
    values = values_typed(texts)
    keys = [each[0].partition("=")[0].lstrip("+") for each in values if len(each) > 1]
    settings = settings_of(command)
    problems = [
        Problem(key, "all points are measured in the same way; give one value")
        for key in keys
        if key in settings or key.removeprefix(f"{command}.") in settings
    ]
    if len(keys) > 2:
        problems.append(Problem(keys[2], f"{len(keys)} keys are swept ({', '.join(keys)}), but a "
                                "table has two; give one value to the others"))  # fmt: skip
    if problems:
        raise ConfigError(problems)
    jobs = list(itertools.product(*values))
    points = []
    for job, config in zip(jobs, configs_of(jobs, command), strict=True):
        swept = [text for text, each in zip(job, values, strict=True) if len(each) > 1]
        named = {text.partition("=")[0].lstrip("+"): text.partition("=")[2] for text in swept}
        points.append(Point(job, named, config))
    return Points(tuple(points), tuple(keys), command)

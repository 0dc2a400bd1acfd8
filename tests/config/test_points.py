"""Several configurations from one command line."""

from __future__ import annotations

import pytest

from penstock.pipeline.commands import bench  # noqa: F401 - registers its settings
from penstock.pipeline.config.composition import composer_for
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.sweeps.sweep import read_points


def points_of(*texts: str):
    return read_points(list(texts), composer_for(texts), command="bench")


def test_without_commas_there_is_one_point():
    points = points_of("loader.num_workers=3", "seconds=0.5")
    assert points.keys == ()
    [point] = points.points
    assert point.config["loader"]["num_workers"] == 3
    assert point.config["bench"]["seconds"] == 0.5


def test_two_keys_make_the_product():
    points = points_of("loader.num_workers=0,1", "loader=threads,torch", "seed=5")
    assert points.keys == ("loader.num_workers", "loader")
    values = [(p.config["loader"]["num_workers"], p.config["loader"]["engine"], p.config["seed"])
              for p in points.points]  # fmt: skip
    assert values == [(0, "threads", 5), (0, "torch", 5), (1, "threads", 5), (1, "torch", 5)]
    assert points.points[2].values == {"loader.num_workers": "1", "loader": "threads"}


def test_more_overrides_are_added_to_the_first_point():
    points = points_of("loader.num_workers=3")
    config = points.config_with("loader.num_workers=5", "trainer.amp=bf16")
    assert config["loader"]["num_workers"] == 5 and config["trainer"]["amp"] == "bf16"
    with pytest.raises(ConfigError):
        points.config_with("loader.num_worker=5")

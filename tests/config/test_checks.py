"""Checks of components: a rule of a component runs before anything is built."""

from __future__ import annotations

import sys

import pytest

from penstock import compose
from penstock.core import registry
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.errors import ConfigError

PARTS = """
from penstock.core.registry import checks, register
from penstock.core.user_errors import Problem

@register("sampler", "paired")
class Paired:
    def __init__(self, n: int, *, pairs: int = 1) -> None:
        pass

@checks("sampler/paired", needs=("sampler.pairs", "loader.batch_size"))
def even(config):
    if config["loader"]["batch_size"] % (2 * config["sampler"]["pairs"]):
        yield Problem("loader.batch_size", "odd")

@checks("cache")
def never(config):
    yield Problem("dataset.cache", config["dataset"]["cache"]["_target_"])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the override that imports the file of the test."""
    register_components()
    for name in ("_components", "_checks"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "checked_parts.py"
    file.write_text(PARTS)
    yield f"imports=[{file}]"
    sys.modules.pop("checked_parts", None)


def keys_of(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return sorted(problem.key for problem in caught.value.problems)


def test_a_component_refuses_a_config_that_it_does_not_suit(own):
    assert keys_of(own, "sampler=paired", "loader.batch_size=3") == ["loader.batch_size"]
    compose([own, "sampler=paired", "loader.batch_size=4"])
    compose([own, "sampler=random", "loader.batch_size=3"])


def test_a_check_says_nothing_about_keys_that_are_wrong_already(own):
    for wrong in ("loader.batch_size=x", "sampler.pairs=x"):
        typed = ("sampler=paired", "loader.batch_size=3", wrong)
        assert keys_of(own, *typed) == [wrong.partition("=")[0]]
    assert keys_of(own, "dataset/cache=ram", "dataset.cache=3") == ["dataset.cache"]


def test_a_check_of_a_group_runs_for_sources_of_a_mix_with_their_keys(own):
    mix = ["dataset=mix", "dataset.sources.a.dataset=lmdb", "dataset.sources.b.dataset=zip"]
    assert keys_of(own, *mix, "dataset.sources.b.dataset.cache=ram") == [
        "dataset.sources.b.dataset.cache"
    ]


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ("dataset=mix dataset.sources.a.dataset=torch", ["dataset.sources.a.dataset.target"]),
        ("dataset=stream dataset.source.path=- trainer.max_epochs=2", ["trainer.max_epochs"]),
        ("dataset=stream dataset/source=rabbitmq dataset.source.queue=q dataset.lanes=2",
         ["dataset.lanes"]),
        ("dataset.cache.path=s3://b/c dataset/cache=disk", ["dataset.cache.path"]),
        ("scheduler=sequence scheduler.schedules.up.warmup=3", ["scheduler.schedules.up"]),
        ("dataset=torch dataset.target=tests.torch_datasets.Squares dataset.val_args={no:1}",
         ["dataset.val_args"]),
    ],
)  # fmt: skip
def test_mistakes_that_show_late_or_never_are_refused(overrides, keys):
    assert keys_of(*overrides.split()) == keys

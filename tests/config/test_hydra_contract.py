"""What we expect of Hydra's private names; a new version that breaks this breaks us."""

from __future__ import annotations

import inspect
from importlib.metadata import version as installed

from penstock.pipeline.config import composition


def test_the_version_is_the_one_that_was_looked_at():
    assert installed("hydra-core").startswith("1.3.")


def test_signatures():
    def names(function) -> list[str]:
        return list(inspect.signature(function).parameters)

    loader = composition.ConfigLoaderImpl
    assert names(loader.__init__) == ["self", "config_search_path"]
    assert names(loader._compose_config_from_defaults_list) == ["self", "defaults", "repo"]
    assert names(loader._apply_overrides_to_config) == ["overrides", "cfg"]
    assert names(loader.load_configuration)[:4] == ["self", "config_name", "overrides", "run_mode"]
    assert names(composition._create_defaults_list) == [
        "repo", "config_name", "overrides", "prepend_hydra", "skip_missing",
    ]  # fmt: skip
    assert names(composition.Overrides.__init__) == ["self", "repo", "overrides_list"]
    assert names(composition.CachingConfigRepository.__init__) == ["self", "delegate"]
    assert names(composition.BasicSweeper.split_arguments) == ["overrides", "max_batch_size"]
    assert names(composition.create_config_search_path) == ["search_path_dir"]


def test_overrides_say_what_was_not_used():
    composer = composition.composer_for([])
    _, unused = composer.compose(["dataset=torch", "dataset/decode=image"])
    assert unused == ["dataset/decode"]


def test_a_sweep_is_split_into_jobs():
    composer = composition.composer_for([])
    parsed = [composer.parse(text) for text in ("seed=1,2", "~a.b", "x='y,z'")]
    assert composition.BasicSweeper.split_arguments(parsed, None) == [
        [["seed=1", "~a.b=null", "x='y,z'"], ["seed=2", "~a.b=null", "x='y,z'"]]
    ]


def test_completion_plugins_are_there():
    from penstock.pipeline.config.completion import SHELLS, _plugin

    for shell in SHELLS:
        assert callable(_plugin(shell, composition.composer_for([]))._query)

"""What ``--help`` says: of a group, of the arguments of what is chosen, of what there is not."""

from __future__ import annotations

import sys

import pytest

from penstock.core import registry
from penstock.pipeline.config.command_line import main
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.composition import ROOT, compose

PARTS = '''
from penstock import register


@register("sampler", "every_other")
class EveryOther:
    """Take every other record.

    Args:
        n: Records there are.
        offset: Where to begin: 0 takes the even records,
            1 the odd ones. None takes ``both``.
    """

    def __init__(self, n: int, *, offset: int | None = None) -> None: ...
'''


@pytest.fixture
def shown(capsys, monkeypatch):
    """Type arguments; give what is printed, and the same with every run of blanks as one."""
    register_components()
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setenv("COLUMNS", "80")

    def show(*arguments: str, status: int = 0) -> tuple[str, str]:
        assert main("no.job", arguments) == status
        printed = capsys.readouterr()
        text = printed.err if status else printed.out
        return text, " ".join(text.split())

    return show


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help", "loader"], "loader.batch_size=64 an integer >= 1 Samples in a batch over all"),
        (["loader=threads", "--help"], "loader.engine=threads a string or null Who computes"),
        (["dataset=lmdb", "--help"],
         "dataset.storage.checksums=true true or false Compare a packed record with"),
        (["trainer", "--help"], "trainer.max_steps=null an integer >= 1 or null Optimizer steps"),
        (["--help", "optimizer"], "optimizer.momentum=0.9 a number momentum factor"),
        (["--help", "dataset.annotations"], "dataset.annotations.one_based=true true or false"),
        (["--help", "dataset"], "dataset.cache=null dataset/cache=disk or none or ram "),
        (["--help", "transform"], "augment.train.mosaic.height="),
        (["--help", "task"], "task.min_score="),
        (["augment=imagenet", "--help"], "augment.train.crop.scale=[0.08,1.0] [a number, a number]"
         " Range"),
    ],
)  # fmt: skip
def test_help_has_the_docstring_beside_each_argument(arguments, said, shown):
    assert said in shown(*arguments)[1]


def test_help_on_a_group_names_its_options_and_each_component_once(shown):
    text, words = shown("--help", "loader")
    for option in ("default", "inline", "processes", "threads", "torch"):
        assert f"\n    {option} " in text
    assert text.count("settings/loader:") == words.count("loader.batch_size=") == 1


@pytest.mark.parametrize("columns", ["80", "50"])
def test_help_is_wrapped_at_the_width_of_the_terminal(columns, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in (["--help"], ["--help", "loader"], ["dataset=lmdb", "--help"]):
        for line in shown(*arguments)[0].splitlines():
            typed = " ".join(line.split()[-2:])  # what is typed as one is not broken
            assert len(line) <= int(columns) or "=" in typed, line


def test_help_has_the_components_of_a_users_own_file(tmp_path, shown, monkeypatch):
    (tmp_path / "own_sampler.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    said = "sampler.offset=null an integer or null Where to begin: 0 takes the even records, 1 the "
    for asked in (["--help", "sampler"], ["sampler=every_other", "--help"]):
        text, words = shown("imports=[own_sampler.py]", *asked)
        assert f"{said}odd ones. null takes `both`." in words
        assert "Records there are" not in text, "which is injected"
    del sys.modules["own_sampler"]


def test_an_engine_of_ones_own_is_an_option(shown):
    imports = f"imports=[{ROOT / 'examples' / 'executor.py'}]"
    sys.modules.pop("executor", None)
    assert "\n    executor " in shown(imports, "--help")[0]
    settings = compose([imports, "loader=executor"])["loader"]
    assert settings == {**compose()["loader"], "engine": "executor"}
    assert compose([imports, "loader.engine=executor"])["loader"] == settings
    del sys.modules["executor"]


@pytest.mark.parametrize(
    ("asked", "typed"),
    [("nonsense", None), ("samplr", "sampler"), ("lmdb", "dataset=lmdb")],
)
def test_help_on_what_there_is_not_is_a_line_with_what_there_is(asked, typed, shown):
    text, words = shown("--help", asked, status=2)
    assert f"--help: no group '{asked}', the groups are augment, batch_transform," in words
    assert text.count("\n") == 2
    if typed is not None:
        assert words.endswith(f"; type {typed} --help")
        shown(typed, "--help")

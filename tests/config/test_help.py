"""``--help`` of everything, of groups, and of the arguments of chosen options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import compose
from penstock.core import registry
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.help import print_help
from penstock.pipeline.config.options import groups, option_file, search_in, summaries

ROOT = Path(__file__).resolve().parents[2]
PARTS = '''
from penstock import register
@register("sampler", "every_other")
class EveryOther:
    """Take every other record.

    Args:
        n: Number of records.
        offset: First record: 0 takes the even records,
            1 the odd ones. None takes ``both``.
    """
    def __init__(self, n: int, *, offset: int | None = None) -> None: ...
'''


@pytest.fixture
def shown(capsys, monkeypatch):
    """Return the help on what is typed, and the same with single blanks."""
    register_components()
    search_in(None)
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setenv("COLUMNS", "80")

    def show(typed: str) -> tuple[str, str]:
        print_help(typed.split())
        text = capsys.readouterr().out
        return text, " ".join(text.split())

    return show


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("loader", "loader.batch_size=64 int >= 1 Samples in a batch over all"),
        ("loader=threads", "loader.engine=threads str | None Who computes"),
        ("dataset=lmdb", "dataset.storage.checksums=true bool Compare a packed record with"),
        ("dataset=lmdb", "dataset.decode.max_pixels="), ("dataset=lmdb", "dataset.val_fraction="),
        ("trainer", "trainer.max_steps=null int >= 1 | None Optimizer steps"),
        ("optimizer", "optimizer.momentum=0.9 float"), 
        ("transform", "augment.train.mosaic.height="),
        ("dataset.annotations", "dataset.annotations.one_based=true bool"),
        ("dataset", "dataset.cache=null dataset/cache=disk or none or ram "),
        ("task", "task.min_score="), ("sampler=weighted", "sampler.replacement="),
        ("augment=imagenet", "augment.train.crop.scale=[0.08,1.0] tuple[float, float] Range"),
        ("augment=imagenet", "augment.eval.resize.max_size="),
        ("dataset=stream", "dataset.shuffle_window="), ("dataset=mix", "dataset.length="),
        ("experiment=bccd", "trainer.monitor=map_50"), ("optimizer=sgd", "optimizer.nesterov=true"),
        ("batch_transform=mixup", "augment.device.mixup.alpha="),
    ],
)  # fmt: skip
def test_help_has_the_type_and_docstring_of_each_argument(typed, said, shown):
    text, words = shown(typed)
    assert f" {said}" in words and "usage:" not in text


def test_help_names_every_group_and_option_in_a_line(shown):
    text, words = shown("")
    assert "\n  writer:" not in text, "which is for a command alone"
    for group in set(groups()) - {"writer"}:
        assert f"\n  {group}:" in text
        for option, summary in summaries(group):
            assert f" {option} {' '.join(summary.split())}".replace("``", "`") in words, option
            assert summary or option_file(group, option) is None


@pytest.mark.parametrize("columns", ["80", "50"])
def test_help_is_wrapped_at_the_width_of_the_terminal(columns, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for typed in ("", "loader", "dataset=lmdb"):
        for line in shown(typed)[0].splitlines():
            typed_as_one = "=" in " ".join(line.split()[-2:])
            assert len(line) <= int(columns) or typed_as_one, line


def test_help_has_components_of_ones_own(tmp_path, shown, monkeypatch):
    (tmp_path / "own_sampler.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    for asked in ("sampler", "sampler=every_other"):
        words = shown(f"imports=[own_sampler.py] {asked}")[1]
        assert "sampler.offset=null int | None First record: 0 takes" in words
        assert "null takes `both`." in words and "Number of records" not in words
    imports = f"imports=[{ROOT / 'examples' / 'executor.py'}]"
    assert "\n    executor " in shown(imports)[0]
    settings = compose([imports, "loader=executor"])["loader"]
    assert settings == {**compose()["loader"], "engine": "executor"}
    assert compose([imports, "loader.engine=executor"])["loader"] == settings
    for name in ("own_sampler", "executor"):
        del sys.modules[name]

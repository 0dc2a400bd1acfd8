"""What the shell is offered."""

from __future__ import annotations

import pytest

from penstock.pipeline.commands import main
from penstock.pipeline.config.completion import suggestions


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sampl", "sampler="),
        ("sampler=we", "sampler=weighted"),
        ("sampler=weighted sampler.re", "sampler.replacement="),
        ("loader.pers", "loader.persistent_workers="),
        ("loader.on_error=r", "loader.on_error=replace"),
        ("loader.persistent_workers=", "loader.persistent_workers=false"),
        ("dataset/st", "dataset/storage="),
        ("dataset/storage=", "dataset/storage=lmdb"),
        ("+experiment=", "+experiment=imagenet"),
        ("'dataset.storage.path=a b' optimizer=", "optimizer=sgd"),
        ("broken== optimizer=", "optimizer=sgd"),
    ],
)
def test_a_word_is_completed(typed: str, offered: str):
    assert offered in suggestions(f"python train.py {typed}")


def test_components_of_ones_own_are_offered(tmp_path):
    (tmp_path / "offered_parts.py").write_text(
        "from penstock.core.registry import register\n@register('sampler', 'offered')\n"
        "class Offered:\n    '''x'''\n    def __init__(self, n: int): ...\n"
    )
    line = f"python train.py 'imports=[{tmp_path}/offered_parts.py]' sampler=off"
    assert suggestions(line) == ["sampler=offered"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penstock ", "bench doctor evaluate export pack predict preview runs top train"),
        ("penstock p", "pack predict preview"),
        ("penstock train sampler=we", "sampler=weighted"),
        ("penstock pack sampler=we", "sampler=weighted"),
    ],
)
def test_the_command_is_completed_too(line, offered, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.strip() == offered

"""What a terminal shows of training: all that matters, however narrow it is."""

from __future__ import annotations

import pytest

from penstock.pipeline.training.checkpoint import RunState
from penstock.pipeline.training.report import Bar


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, ("epoch 3/10", "145/1000", "loss 1.757", "1,106 samples/s", "data wait 12%")),
        (40, ("epoch 3/10", "145/1000", "loss 1.757")),
    ],
)
def test_the_bar_shows_whole_figures_at_any_width(monkeypatch, capsys, columns, shown):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar(max_epochs=10)
    figures = {"loss": 1.7567, "samples_per_s": 1106.0, "data_wait": 0.12}
    bar.step(RunState(epoch=2, batch=145, step=2145), 1000, figures)
    bar.close()
    text = capsys.readouterr().out
    for part in shown:
        assert part in text
    assert "…" not in text.rpartition("epoch 3")[2]

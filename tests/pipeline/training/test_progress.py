"""What a terminal shows of training: all that matters, however narrow it is."""

from __future__ import annotations

import pytest

from penstock.pipeline.loader.contract import BatchStats, Delivery
from penstock.pipeline.loader.stats import LoaderStats, limit_text
from penstock.pipeline.training.checkpoint import RunState
from penstock.pipeline.training.output import print_line
from penstock.pipeline.training.report import Bar, duration


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")


def test_the_bar_goes_on_during_validation_and_tells_the_time_left_for_the_run(
    terminal, monkeypatch, capsys
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = Bar(max_epochs=10)
    figures = {"loss": 1.7567, "samples_per_s": 1106.0, "data_wait": 0.12}
    bar.step(RunState(epoch=0, batch=500), 1000, figures, "")
    now[0] = 400.0
    bar.step(RunState(epoch=1, batch=500), 1000, figures, "")
    bar.close()
    assert "42:30 min left" in capsys.readouterr().out  # 8.5 epochs of 300 s
    bar = Bar(max_epochs=10)
    bar.validating(RunState(epoch=1, batch=1000), 7, 20)
    bar.close()
    text = capsys.readouterr().out
    assert "epoch 2/10" in text and "7/20" in text and "validation" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.4, "12 s"), (205, "3:25 min"), (7380, "2:03 h"), (99.9, "100 s")]
)
def test_times_are_short(seconds, text):
    assert duration(seconds) == text


def test_lines_break_between_words_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_line("val loss 0.6364  accuracy 0.7712  top5_accuracy 0.9931")
    assert capsys.readouterr().out.splitlines() == [
        "val loss 0.6364  accuracy", "      0.7712  top5_accuracy", "      0.9931",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (80, ("epoch 3/10", "145/1000", "loss 1.757", "1,106 samples/s", "wait 12%")),
        (40, ("epoch 3/10", "145/1000", "loss 1.757")),
    ],
)
def test_the_bar_shows_whole_figures_at_any_width(monkeypatch, capsys, columns, shown):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar(max_epochs=10)
    figures = {"loss": 1.7567, "samples_per_s": 1106.0, "data_wait": 0.12}
    bar.step(RunState(epoch=2, batch=145, step=2145), 1000, figures, "")
    bar.close()
    text = capsys.readouterr().out
    for part in shown:
        assert part in text
    assert "…" not in text.rpartition("epoch 3")[2]


@pytest.mark.parametrize(
    ("wait_share", "stages", "limit"),
    [
        (0.05, {"read": 90.0, "decode": 10.0}, "the model"),
        (0.5, {}, "the loader"),
        (0.5, {"read": 75.0, "decode": 25.0}, "reading, 75% of the loader's work"),
        (0.1, {"read": 1.0, "transform": 3.0}, "augmenting, 75% of the loader's work"),
    ],
)
def test_the_one_limit_is_named(terminal, capsys, wait_share, stages, limit):
    assert limit_text(wait_share, stages) == limit
    bar = Bar(max_epochs=10)
    figures = {"loss": 1.7567, "samples_per_s": 1106.0, "data_wait": wait_share}
    bar.step(RunState(epoch=2, batch=145, step=2145), 1000, figures, limit)
    bar.close()
    shown = capsys.readouterr().out
    assert shown.index("epoch 3/10") < shown.index(f"limit: {limit}; penstock bench tells")


@pytest.mark.parametrize(("slow", "limit"), [("loader", "augmenting"), ("model", "the model")])
def test_a_slow_part_is_found_when_the_first_batches_are_past(monkeypatch, slow, limit):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    stats, took = LoaderStats(), BatchStats(transform=0.02, samples=8)
    stats.begin()
    for number in range(103):
        if number:
            stats.asked()
        now[0] += 0.01 if slow == "loader" and number else 60.0 * (not number)
        stats.count_in(Delivery(number, {}, stats=took))
        assert not stats.limit or number >= 100
        now[0] += 0.01
    assert stats.limit.startswith(limit)

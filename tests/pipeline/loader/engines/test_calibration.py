"""What is tried and what is kept, by a clock that the test moves."""

from __future__ import annotations

import pytest

from penstock.pipeline.loader.engines.calibration import Calibration, Look, contenders
from penstock.pipeline.loader.engines.pool import Usage, WorkerLayout

THREADS, FEW, EACH, HERE = (
    WorkerLayout(2), WorkerLayout.spread(2, 1), WorkerLayout.spread(2, 2), WorkerLayout(),
)  # fmt: skip
DEPTH = 4


class _Loop:
    """A consumer's loop: what a batch takes under each layout, and what of it is its step."""

    def __init__(self, found, batch_s, step_s=0.0, **settings):
        self.now = 0.0
        self.batch_s, self.step_s = batch_s, step_s
        self.looks: list[Look] = []
        self.order: list[WorkerLayout] = []
        self.usage = Usage()

        def find(look):
            self.looks.append(look)
            return found, "because"

        settings = {"window_s": 0.25, "least": 8, **settings}
        self.calibration = Calibration(
            THREADS, find, depth=DEPTH, clock=lambda: self.now, **settings
        )

    def run(self, deliveries):
        """Deliver, the first ones of a layout still by the one before it."""
        calibration, late = self.calibration, []
        for _ in range(deliveries):
            if calibration.is_over:
                return
            layout = late.pop() if late else calibration.layout
            if not self.order or self.order[-1] != layout:
                self.order.append(layout)
            self.now += self.batch_s[layout] - self.step_s
            self.usage = self.usage + Usage(1, 0.010, 0.008)
            before = calibration.layout
            calibration.delivered(layout, 10, self.usage)
            if calibration.layout != before and not calibration.is_over:
                late = [before] * DEPTH
            self.now += self.step_s
            calibration.asked()


def test_the_fastest_is_kept_and_the_others_are_named():
    loop = _Loop([FEW, EACH], {THREADS: 0.020, FEW: 0.015, EACH: 0.039}, step_s=0.008)
    loop.run(1000)
    assert loop.calibration.is_over and loop.calibration.layout == FEW
    assert "because; 667 samples/s; tried: 2 threads of this process 500, 2 processes of 1 " in (
        loop.calibration.reason
    )
    assert loop.order == [THREADS, FEW, EACH, THREADS, FEW, EACH]
    assert loop.now < 3


def test_what_is_slow_at_first_is_looked_at_again():
    loop = _Loop([FEW, EACH], {THREADS: 0.030, FEW: 0.015, EACH: 0.013})
    loop.run(15)
    loop.batch_s[THREADS] = 0.010
    loop.run(1000)
    assert loop.order == [THREADS, FEW, EACH, THREADS, FEW, EACH]
    assert loop.calibration.layout == THREADS


def test_what_takes_least_is_kept_where_all_are_as_good():
    loop = _Loop([FEW, EACH], {THREADS: 0.0202, FEW: 0.020, EACH: 0.020})
    loop.run(1000)
    assert loop.calibration.layout == THREADS
    assert loop.order == [THREADS, FEW, EACH, THREADS, FEW, EACH], "twice, in turn"


def test_nothing_is_tried_where_nothing_was_found():
    loop = _Loop([], {THREADS: 0.02}, step_s=0.015)
    loop.run(1000)
    assert loop.calibration.is_over and loop.order == [THREADS]
    assert loop.calibration.reason == "because"
    (look,) = loop.looks
    assert look.step_share == pytest.approx(0.75, abs=0.06)
    assert look.at_work == pytest.approx(0.4)
    assert look.efficiency == pytest.approx(0.8)


def test_a_disturbance_does_not_decide():
    loop = _Loop([FEW], {THREADS: 0.0200, FEW: 0.0205})
    loop.run(9)
    loop.now += 0.02  # threads are measured at 0.93 of what they do
    loop.run(1000)
    assert loop.order == [THREADS, FEW, THREADS, FEW]
    assert loop.calibration.layout == THREADS


def test_what_cannot_be_had_is_left_out_and_said():
    loop = _Loop([FEW, EACH], {THREADS: 0.02, EACH: 0.01})
    while loop.calibration.layout == THREADS:
        loop.run(1)
    loop.calibration.failed("it is not picklable")
    loop.run(1000)
    assert loop.calibration.layout == EACH
    assert "1 process of 2 threads cannot be had: it is not picklable" in loop.calibration.reason


def test_the_pause_between_epochs_and_the_first_batches_after_it_do_not_count():
    loop = _Loop([FEW], {THREADS: 0.020, FEW: 0.030})
    for _ in range(200):
        loop.run(DEPTH + 3)
        loop.now += 7.0
        loop.calibration.begin()
    assert loop.calibration.layout == THREADS
    assert "500 samples/s; tried: 1 process of 2 threads 333" in loop.calibration.reason


def test_a_measurement_is_of_several_batches_however_long_they_take():
    loop = _Loop([], {THREADS: 1.0})
    loop.run(DEPTH + 7)
    assert not loop.looks
    loop.run(1)
    assert loop.calibration.is_over


def test_what_another_formation_delivers_in_between_is_not_timed():
    loop = _Loop([], {THREADS: 0.02})
    loop.run(DEPTH + 2)
    loop.now += 5.0
    loop.calibration.delivered(FEW, 10, Usage())
    loop.calibration.asked()
    loop.run(100)
    assert loop.looks[0].at_work == pytest.approx(0.4)


def _look(step_share=0.0, at_work=1.9, cpu_s=0.05, wall_s=0.0):
    return Look(step_share, at_work, cpu_s, wall_s or cpu_s)


@pytest.mark.parametrize(
    ("look", "workers", "expected"),
    [
        (_look(), 2, []),  # a bare loop, and the threads do not hold each other up
        (_look(wall_s=0.09, at_work=1.1), 2, [FEW, EACH]),  # a bare loop of Python code
        (_look(wall_s=0.09, at_work=1.1), 1, []),
        (_look(step_share=0.4, at_work=1.2), 2, [FEW]),
        (_look(step_share=0.4, wall_s=0.1), 2, [FEW, EACH]),
        (_look(step_share=0.4, wall_s=0.1), 1, [WorkerLayout.spread(1, 1)]),
        (_look(step_share=0.99, at_work=0.03), 2, []),  # the model is what takes the time
        (_look(step_share=0.4), 16, [WorkerLayout(processes=(4, 4, 4, 4))]),
        (_look(cpu_s=0.0004), 2, [HERE]),  # whole batches of small samples
        (_look(cpu_s=0.002, wall_s=0.004), 2, [HERE, FEW, EACH]),  # tables
        (_look(cpu_s=0.002, wall_s=0.004), 1, []),
        (_look(cpu_s=0.0004, wall_s=0.3, at_work=0.01), 2, []),  # waiting for a network
    ],
)
def test_what_is_worth_trying(look, workers, expected):
    found, why = contenders(look, workers)
    assert found == expected and why

"""SIGTERM to every process of a job: workers run until the main process ends, not longer."""

from __future__ import annotations

import os
import signal

import pytest

from tests.pipeline.loader.programs import assert_gone, family_at_work, runs, start_program

MAIN = """
import multiprocessing, signal, sys, time
from tests.pipeline.loader.fakes import FakeDataset, make_loader

class Hanging(FakeDataset):
    def fetch(self, indices, positions, epoch):
        if 400 in indices.tolist():
            time.sleep(3600)
        return super().fetch(indices, positions, epoch)

def loader_of(engine, dataset):
    return make_loader(dataset, engine=engine, num_workers=2)
"""

FINISHES = (
    MAIN
    + """
if __name__ == "__main__":
    came = []
    if sys.argv[2] == "handled":
        signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    more = 20
    batches = iter(loader_of(sys.argv[1], FakeDataset(4000, slow_s=0.05)))
    next(batches)  # the first two are of different workers, so both have their signal handlers
    for number, batch in enumerate(batches):
        print(number, flush=True)
        more -= bool(came)
        if not more:
            print("saved", flush=True)
            sys.stdin.readline()
            break
"""
)

ENDS = (
    MAIN
    + """
if __name__ == "__main__":
    loader = loader_of(sys.argv[1], Hanging(800))
    batches = iter(loader)
    next(batches)
    print("0", flush=True)
    for _ in range(45):
        next(batches)
    time.sleep(0.5)
"""
)


@pytest.mark.parametrize("engine", ["processes", "torch"])
def test_workers_are_there_for_the_last_step(tmp_path, engine):
    process = start_program(tmp_path, FINISHES, engine, "handled")
    family = family_at_work(process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout is not None
    while (line := process.stdout.readline()) != "saved\n":
        assert line, process.communicate()
    assert all(map(runs, family))
    _, err = process.communicate("go on\n", timeout=250)
    assert (process.returncode, err) == (0, "")
    assert_gone(family)


@pytest.mark.parametrize("engine", ["processes", "torch"])
def test_workers_end_with_a_main_process_that_ends_of_it(tmp_path, engine):
    process = start_program(tmp_path, FINISHES, engine, "unhandled")
    family = family_at_work(process)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=250)
    assert process.returncode == -signal.SIGTERM
    assert_gone(family)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "torch"])
def test_workers_that_hang_do_not_keep_the_main_process(tmp_path, engine):
    process = start_program(tmp_path, ENDS, engine)
    family = family_at_work(process)
    os.kill(family[-1].pid, signal.SIGTERM)
    _, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, "")
    assert_gone(family)

"""``bad_samples.csv``: complete and readable, with several writers too."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

from penstock.pipeline.loader.contract import Fault
from penstock.pipeline.loader.faults import BadSampleLog


def _fault(position: int, cause: str = "c") -> Fault:
    return Fault(0, position, position, f"k{position}", "s", cause, "skipped")


def _add(path: Path, *positions: int, split: str = "train") -> None:
    log = BadSampleLog(path, split=split, max_error_rate=1.0)
    for position in positions:
        log.add((_fault(position),), 1)


def _rank(path: Path, rank: int, barrier) -> None:
    for number in range(30):
        barrier.wait()
        _add(path / f"{number}.csv", rank, 4 + rank)


def _listed(path: Path) -> list[tuple[str, int]]:
    with path.open(newline="") as file:
        return sorted((row["split"], int(row["position"])) for row in csv.DictReader(file))


def test_ranks_that_begin_at_the_same_time_write_one_header_and_all_rows(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    ranks = [context.Process(target=_rank, args=(tmp_path, rank, barrier)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4
    for path in tmp_path.iterdir():
        assert path.read_text().count("epoch") == 1
        assert _listed(path) == [("train", position) for position in range(8)]


def test_a_cause_of_several_lines_is_one_row(tmp_path):
    path = tmp_path / "bad_samples.csv"
    log = BadSampleLog(path, split="train", max_error_rate=1.0)
    log.add((_fault(3, 'cut "here",\nand\r\nthere'), _fault(4)), 2)
    assert len(path.read_text().splitlines()) == 3
    with path.open(newline="") as file:
        assert next(csv.DictReader(file))["cause"] == 'cut "here", and there'

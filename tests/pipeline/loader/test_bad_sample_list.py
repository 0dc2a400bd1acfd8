"""``bad_samples.csv``: complete and readable, whoever writes to it and however it was left."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

import pytest

from penstock.pipeline.loader.contract import Fault
from penstock.pipeline.loader.faults import BadSampleLog
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

HEADER = "epoch,position,index,key,storage,cause,action,split\r\n"
CUTS = [
    "", "epoch,pos", HEADER, "0,1,1,k1,s,c,skipped,train\r\n", HEADER + "0,1,1,k1,s,c,skip",
    HEADER + '0,1,1,k1,s,"a cause, which is cu', "epoch,position\r\n0,1\r\n",
]  # fmt: skip


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


@pytest.mark.parametrize("left", CUTS)
def test_a_file_that_was_cut_short_is_gone_on_with(tmp_path, left):
    path = tmp_path / "bad_samples.csv"
    path.write_text(left, newline="")
    for _ in range(2):
        _add(path, 1, 2)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    for n in "12":
        assert rows.count(["0", n, n, f"k{n}", "s", "c", "skipped", "train"]) == 1
    if not left:
        assert _listed(path) == [("train", 1), ("train", 2)]


def test_a_cause_of_several_lines_is_one_row(tmp_path):
    path = tmp_path / "bad_samples.csv"
    for _ in range(2):
        log = BadSampleLog(path, split="train", max_error_rate=1.0)
        log.add((_fault(3, 'cut "here",\nand\r\nthere'), _fault(4)), 2)
    assert len(path.read_text().splitlines()) == 3
    with path.open(newline="") as file:
        assert next(csv.DictReader(file))["cause"] == 'cut "here", and there'


def test_bad_samples_of_both_splits_are_listed(tmp_path):
    path = tmp_path / "bad_samples.csv"
    for _ in range(2):
        for split, on_error in (("train", "on_error"), ("val", "eval_on_error")):
            data = FakeDataset(64, bad=(5, 7) if split == "val" else (5,))
            settings = {on_error: "skip", "max_error_rate": 1.0}
            digests(make_loader(data, bad_samples_path=path, split=split, **settings))
    assert _listed(path) == [("train", 5), ("val", 5), ("val", 7)]

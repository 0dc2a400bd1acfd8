"""The table of storages: its arithmetic, its lines, and the advice it gives."""

from __future__ import annotations

from pipeline.commands.bench.forms import Form
from pipeline.commands.bench.storage_process import Measured
from pipeline.commands.bench.storage_table import Data, advice, blocks, by_speed, gain


def form(name: str, *random: float, size: int = 10**6) -> Form:
    rounds = [Measured(0.1, rate * 2, rate, 1e6 / rate, 1e6 / rate) for rate in random]
    return Form(name, b"x", size, 1.0, Measured(0.2, own_bytes=10**6), rounds)


def test_gains_are_medians_of_the_rounds_own():
    source, other = form("files*", 100, 200, 400), form("lmdb", 300, 400, 400)
    assert gain(other, source) == 2.0
    assert gain(source, source) == 1.0
    slow, failed = form("zip", 50, 50, 50), form("arrow", 900, 900, 900)
    failed.why = "its process ended"
    assert [f.name for f in by_speed([source, slow, failed, other])] == ["files*", "lmdb", "zip"]


def test_advice_says_what_the_figures_say():
    source, lmdb, close = form("files*", 1000), form("lmdb", 4000), form("sqlite", 3800)
    tables = form("parquet", 500, size=2_000_000)
    said = advice([source, tables, lmdb, close], Data(10, 3200, 100.0))
    assert "records of 3.2 kB: lmdb or sqlite, 4.0 times as fast" in said
    assert "100 µs of the processor, reading it as it is 1,000 µs, so reading is 91%" in said
    assert said.endswith("programs: parquet (2.0 MB).")
    said = advice([source, tables], Data(10, 3200, 99_000.0))
    assert "no form beats the data as it is" in said and "decides little" in said
    assert advice([source], Data(10, 3200, None)) == ""


def test_a_narrow_terminal_gets_several_tables():
    lines = [("form", "random", "size"), ("lmdb", "1,000/s", "3 MB"), ("zip", "5/s", "12 MB")]
    assert blocks(lines, 80) == [
        ["form   random   size", "lmdb  1,000/s   3 MB", "zip       5/s  12 MB"]
    ]
    assert blocks(lines, 15) == [
        ["form   random", "lmdb  1,000/s", "zip       5/s"],
        ["", "form   size", "lmdb   3 MB", "zip   12 MB"],
    ]

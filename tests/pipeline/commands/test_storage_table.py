"""The table of storages: its arithmetic, its lines, and the advice it gives."""

from __future__ import annotations

from penstock.pipeline.commands.bench.storage_process import Measured
from penstock.pipeline.commands.bench.storages import Form, advice, by_speed


def form(name: str, *random: float, size: int = 10**6) -> Form:
    rounds = [Measured(0.1, rate * 2, rate, 1e6 / rate, 1e6 / rate) for rate in random]
    return Form(name, b"x", size, Measured(0.2, own_bytes=10**6), rounds)


def test_gains_are_medians_of_the_rounds_own():
    source, other = form("files*", 100, 200, 400), form("lmdb", 300, 400, 400)
    assert other.gain(source) == 2.0
    assert source.gain(source) == 1.0
    slow, failed = form("zip", 50, 50, 50), form("arrow", 900, 900, 900)
    failed.why = "its process ended"
    assert [f.name for f in by_speed([source, slow, failed, other])] == ["files*", "lmdb", "zip"]


def test_advice_says_what_the_figures_say():
    source, lmdb, close = form("files*", 1000), form("lmdb", 4000), form("zip", 3800)
    tables = form("parquet", 500, size=2_000_000)
    said = advice([source, tables, lmdb, close], 3200, 100.0)
    assert "records of 3.2 kB: lmdb or zip, 4.0 times as fast" in said
    assert "100 µs of the processor, reading it as it is 1,000 µs, so reading is 91%" in said
    assert said.endswith("programs: parquet (2.0 MB).")
    said = advice([source, tables], 3200, 99_000.0)
    assert "no form beats the data as it is" in said and "decides little" in said
    assert advice([source], 3200, None) == ""

"""Many threads use the cache of the machine at once, more files than one process holds open."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.core import machine_cache
from penstock.core.machine_cache import computed_once


def test_threads_do_not_close_each_others_files(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_cache, "_MOST_HELD", 1)
    is_at = machine_cache.is_at

    def slow_is_at(path: Path, descriptor: int) -> bool:
        time.sleep(0.001)  # where other threads go on
        return is_at(path, descriptor)

    monkeypatch.setattr(machine_cache, "is_at", slow_is_at)

    def use(number: int) -> str:
        name = f"json-{number % 3}"
        make = lambda path: Path(path).write_text(name)  # noqa: E731
        return computed_once(name, ".json", make=make, load=Path.read_text, what="it")[1]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(use, range(90)))
    assert found == [f"json-{number % 3}" for number in range(90)]
    assert "made again" not in caplog.text

"""Files of the machine's cache that an object maps, on a machine that lacks them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.core.machine_cache import files_sent, sent


class Mapped:
    def __init__(self, path: str) -> None:
        self.path = path

    def __getstate__(self):
        return {"path": sent(self.path)}


@pytest.mark.parametrize("there", [None, b"of another run"])
def test_a_machine_gets_a_file_that_it_lacks(tmp_path, monkeypatch, there):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "rows.npy"
    file.write_bytes(expected := bytes(range(256)))
    assert pickle.loads(pickle.dumps(Mapped(str(file)))).path == str(file)
    with files_sent():
        pickled = pickle.dumps(Mapped(str(file)))
    assert pickle.loads(pickled).path == str(file)
    file.unlink()
    if there is not None:
        file.write_bytes(there)
    copies = [Path(pickle.loads(pickled).path) for _ in range(2)]
    assert copies[0] == copies[1] != file and copies[0].read_bytes() == expected

"""Signatures of library classes: found out once, kept on disk by version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline.config import signatures as library
from penstock.pipeline.config.signatures import signature_of
from penstock.pipeline.config.values import words

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._known.cache_clear()
    yield tmp_path
    library._known.cache_clear()


def test_a_library_is_imported_once_for_all_its_classes(fresh, monkeypatch):
    assert signature_of("torch.optim.AdamW").arguments["lr"].default == 0.001
    assert [file.name for file in (fresh / "penstock" / "signatures").iterdir()] == [
        library.cache_file("torch").name
    ]
    library._known.cache_clear()
    monkeypatch.setattr(library, "_find_out", None)
    features = signature_of("torch.nn.Linear").arguments["in_features"]
    assert features.required and words(features.annotation) == "an integer"
    assert "optimizer" not in signature_of("torch.optim.lr_scheduler.StepLR").arguments


@pytest.mark.slow
def test_a_damaged_file_is_made_anew(fresh):
    file = library.cache_file("torch")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x80\x04torch.opt")
    assert signature_of("torch.optim.SGD").arguments["momentum"].default == 0


def test_the_version_is_in_the_name(monkeypatch):
    before = library.cache_file("torch")
    monkeypatch.setattr(library.importlib.metadata, "version", lambda name: "99.0")
    assert "99.0" in library.cache_file("torch").name
    assert library.cache_file("torch") != before


def test_every_process_finds_what_another_has_found_out():
    code = f"from {library.__name__} import cache_file; print(cache_file('torch'))"
    names = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert names == {f"{library.cache_file('torch')}\n"}

"""``doctor`` says what is there, and how what is missing is got."""

from __future__ import annotations

import pytest

from penstock.pipeline.commands import main
from penstock.transforms.decode.image import turbojpeg


def machine(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["doctor"]) == 0
    return capsys.readouterr().out


def test_it_names_what_makes_things_faster(capsys):
    said = machine(capsys)
    assert "accelerators: " in said and "cores this process may use" in said


def test_it_says_how_to_get_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(turbojpeg, "region_decoder", lambda: None)
    said = machine(capsys)
    assert "pip install '.[regions]'" in said

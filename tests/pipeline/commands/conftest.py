"""Packing measures how fast its result is read: for a moment is enough here."""

import pytest

from penstock.pipeline.packing import report


@pytest.fixture(autouse=True)
def measured_for_a_moment(monkeypatch):
    monkeypatch.setattr(report, "_MEASURE_S", 0.01)

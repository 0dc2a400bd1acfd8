"""What tests of training runs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def tiny_parts(monkeypatch):
    """A job in this process makes the parts of `tiny_job`, and leaves torch as it was."""
    import torch

    from penstock.pipeline.training import job, parts
    from tests.pipeline.training.tiny_job import FAKES

    threads = torch.get_num_threads()
    for name, fake in FAKES.items():
        monkeypatch.setattr(job if hasattr(job, name) else parts, name, fake)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)

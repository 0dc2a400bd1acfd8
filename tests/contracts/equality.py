"""Comparison of samples to the last bit, and of global random states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Check that two samples or batches are equal in fields, types, shapes and every bit."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert a.tobytes() == b.tobytes(), f"{where} differs"
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert torch.equal(a, b), f"{where} differs"
    else:
        assert a == b, where


def seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def untouched_global_states() -> Iterator[None]:
    """Check that the block leaves the global random states as they were."""
    python, numpy_state, torch_state = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    yield
    assert random.getstate() == python, "Python's random state was touched"
    assert np.array_equal(np.random.get_state()[1], numpy_state[1]), "NumPy's state was touched"
    assert np.random.get_state()[2] == numpy_state[2], "NumPy's random state was touched"
    assert torch.equal(torch.get_rng_state(), torch_state), "torch's random state was touched"

"""Global random states of Python, NumPy and torch, seeded for a moment and then put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def global_states(seed: int) -> Iterator[None]:
    """Run a block with the global random states seeded; afterwards they are as before.

    Other threads see the seeded states meanwhile, so this is for processes in which one
    thread works.

    Args:
        seed: 0 .. 2^63 - 1.
    """
    import numpy as np
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)

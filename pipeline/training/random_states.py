"""The global random states, which model initialisation and dropout draw from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from pipeline.rng import Stream, philox_words


def seed_random_states(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch; every rank gets draws of its own."""
    words = philox_words(seed, 0, rank, rank + 1, Stream.GLOBAL)[0]
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) & 0xFFFFFFFF)
    torch.manual_seed(int(words[2]))


def random_states() -> dict[str, Any]:
    """The states as tensors and plain values, which load with ``weights_only``."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert name == "MT19937"
    return {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Set Python's, NumPy's and torch's states to what `random_states` gave."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])

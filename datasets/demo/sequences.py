"""Generate the demo set of sequences: Parquet files with columns tokens (lists) and label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.demo.folder import DemoSet, random

MOTIFS = {"fall": (4, 3, 2, 1), "jump": (1, 3, 2, 4), "rise": (1, 2, 3, 4), "swap": (2, 1, 4, 3)}
"""The tokens that sequences of a class repeat; all classes use the same tokens."""

NUM_TOKENS = 32
"""Tokens are 1 to 31; 0 is for masking and padding."""

COUNTS = {"train": 4000, "val": 800}
_SHORTEST, _LONGEST = 8, 128
_SEED = 20_240_301


def generate_sequences(root: Path) -> None:
    """Write the sequences of every split into the folder `root`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for split_id, (split, count) in enumerate(COUNTS.items()):
        tokens = [draw_sequence(split_id, number) for number in range(count)]
        labels = [list(MOTIFS)[number % len(MOTIFS)] for number in range(count)]
        table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int16())), "label": labels})
        pq.write_table(table, root / f"{split}.parquet", row_group_size=500)


def draw_sequence(split_id: int, number: int) -> NDArray[np.int16]:
    """Draw one sequence, int16 [T]: noise, with its class's motif about once in 16 tokens."""
    rng = random(_SEED, split_id, number)
    length = int(np.clip(np.exp(rng.normal(3.7, 0.7)), _SHORTEST, _LONGEST))
    tokens = rng.integers(5, NUM_TOKENS, length).astype(np.int16)
    motif = list(MOTIFS.values())[number % len(MOTIFS)]
    step = len(motif) + 1  # two adjacent motifs would contain another class's motif
    for place in rng.choice(length // step, max(1, length // 16), replace=False).tolist():
        tokens[place * step : (place + 1) * step - 1] = motif
    return tokens


SEQUENCES = DemoSet("demo_sequences", ("parquet",), generate_sequences)

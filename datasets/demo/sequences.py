"""Generate the demo set of sequences: tokens of varied length, whose order gives the class.

A tree like ::

    demo_sequences/train.parquet     columns tokens (lists) and label
    demo_sequences/val.parquet
    demo_sequences/penstock-demo.json
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.demo.folder import DemoSet

MOTIFS = {
    "rise": (1, 2, 3, 4),
    "fall": (4, 3, 2, 1),
    "jump": (1, 3, 2, 4),
    "swap": (2, 1, 4, 3),
}
"""The tokens that sequences of a class repeat; all classes use the same tokens."""

NUM_TOKENS = 32
"""Tokens are 1 to 31; 0 is for masking and padding."""

COUNTS = {"train": 4000, "val": 800}
_SHORTEST, _LONGEST = 8, 128
_SEED = 20_240_301


def generate_sequences(root: Path) -> None:
    """Write the sequences of every split into the folder `root`."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"label": {"names": list(MOTIFS), "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for split_id, (split, count) in enumerate(COUNTS.items()):
        tokens = [draw_sequence(split_id, number) for number in range(count)]
        labels = np.arange(count) % len(MOTIFS)
        table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int16())), "label": labels})
        table = table.replace_schema_metadata(metadata)
        pq.write_table(table, root / f"{split}.parquet", row_group_size=500)


def draw_sequence(split_id: int, number: int) -> NDArray[np.int16]:
    """Draw one sequence: noise, with the motif of its class about once in 16 tokens.

    Depends only on its arguments. Lengths are log-normal, most of them between 15 and 100.

    Returns:
        int16 [T], 1 to 31.
    """
    rng = np.random.Generator(np.random.Philox(key=_SEED, counter=[0, split_id, number, 0]))
    length = int(np.clip(np.exp(rng.normal(3.7, 0.7)), _SHORTEST, _LONGEST))
    tokens = rng.integers(5, NUM_TOKENS, length).astype(np.int16)
    motif = list(MOTIFS.values())[number % len(MOTIFS)]
    step = len(motif) + 1  # two adjacent motifs would contain another class's motif
    for place in rng.choice(length // step, max(1, length // 16), replace=False).tolist():
        tokens[place * step : (place + 1) * step - 1] = motif
    return tokens


SEQUENCES = DemoSet(
    "demo_sequences", ("parquet",), "dataset=parquet",
    {"version": 1, "classes": list(MOTIFS), "counts": COUNTS}, generate_sequences,
)  # fmt: skip

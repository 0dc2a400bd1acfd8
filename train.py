"""Train: ``python train.py [group=option ...] [key=value ...]``; ``--help`` lists them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    # Python puts this folder first, where its `datasets` would hide Hugging Face's.
    sys.path[:1] = [str(HERE / "src") if Path(p).resolve() == HERE else p for p in sys.path[:1]]
    from penstock.pipeline.program import train

    train()

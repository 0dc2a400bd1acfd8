"""Several training jobs one after the other in the same ranks: what torchrun starts in tests."""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed as dist

from penstock.pipeline.training import job


def main() -> None:
    """Train every config of the file ``argv[1]``; rank 0 writes the results to ``argv[2]``."""
    prefix_store, number = dist.PrefixStore, count()

    def fresh_store(name: str, store: Any) -> Any:
        """Every job meets at a place of its own; in daily use a process runs one job."""
        return prefix_store(f"{name}-{next(number)}", store)

    dist.PrefixStore = fresh_store  # type: ignore[misc, assignment]
    results = [job.train(config) for config in json.loads(Path(sys.argv[1]).read_text())]
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()

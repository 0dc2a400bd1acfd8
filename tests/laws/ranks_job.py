"""A script for torchrun: several training jobs in turn, in the same ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock import fit


def main() -> None:
    """Train every config of the file ``argv[1]``; rank 0 writes the results to ``argv[2]``."""
    results = [fit(config) for config in json.loads(Path(sys.argv[1]).read_text())]
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()

"""``python -m pipeline <command> [overrides]``: everything beside training."""

from __future__ import annotations

import sys

from pipeline.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

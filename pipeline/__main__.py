"""``python -m pipeline <command> [overrides]``: everything beside training."""

from __future__ import annotations

import sys
from functools import partial

from pipeline.commands import main
from pipeline.process_exit import exit_with

if __name__ == "__main__":
    exit_with(partial(main, sys.argv[1:]))

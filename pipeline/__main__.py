"""``python -m pipeline <command> [overrides]``, from the checkout: what ``penstock`` does."""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    if __package__ == "pipeline":  # found by its folder, beside train.py, which knows what to check
        import_module("train").check_package()
    from penstock.pipeline.program import command

    command(sys.argv[1:])

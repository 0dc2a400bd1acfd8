"""Train: ``python train.py [group=option ...] [key=value ...]``; ``--help`` lists them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def check_packages() -> None:
    """Stop if `datasets` is not ours: a well-known package has the same name."""
    import datasets

    found = Path(datasets.__file__ or next(iter(datasets.__path__))).resolve()
    if HERE not in found.parents:
        sys.exit(
            f"train.py: `import datasets` gave {found}, expected the folder datasets/ beside "
            f"train.py.\nThe package `datasets` of Hugging Face hides it; run this file as "
            f"`python {Path(__file__).name}` from {HERE}, or take that package out of PYTHONPATH."
        )


def main() -> int:
    """Compose, check, build, fit; returns the exit status."""
    check_packages()
    from pipeline.config.command_line import main as run

    return run("pipeline.training.job.train")


if __name__ == "__main__":
    from pipeline.process_exit import exit_with

    exit_with(main)

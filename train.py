"""Train: ``python train.py [group=option ...] [key=value ...]``; ``--help`` lists them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def check_package() -> None:
    """Take this folder's `penstock` and no other, and let nobody else find `datasets` in it."""
    sys.path[:1] = [path for path in sys.path[:1] if Path(path).resolve() != HERE]
    try:
        import penstock
    except ModuleNotFoundError as error:
        if error.name != "penstock":
            raise
        sys.exit(
            f"error: penstock is not installed in {sys.executable}; type, in {HERE}: "
            f"pip install -c constraints.txt -e ."
        )
    found = Path(penstock.__file__ or "").resolve().parent
    if found != HERE:
        sys.exit(
            f"error: Python finds another penstock, in {found}, and not this one in {HERE}; type "
            f"`pip install -e {HERE}` to use this one, or `penstock train` to use the other"
        )


if __name__ == "__main__":
    check_package()
    from penstock.pipeline.program import train

    train()

"""Folders of generated data: made whole or not at all, once, and nothing else is touched."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core.files import locked, whole_folder, writing

log = logging.getLogger(__name__)

_MARKER = "penstock-demo.json"
_UNFINISHED = ".penstock-demo-unfinished-"
_LOCK = ".penstock-demo.lock"


@contextlib.contextmanager
def own_folder(
    root: Path, about: Mapping[str, Any], generate: Callable[[Path], None]
) -> Iterator[Path]:
    """A folder of generated data, held so that no other process writes to it.

    Processes that ask at the same time wait for one of them to make it.

    Args:
        root: The folder; the one around it is made too.
        about: Goes into its marker file; ``version`` and ``counts``, the samples by split.
        generate: Fills a folder.

    Yields:
        The folder, absolute.

    Raises:
        ValueError: It is someone else's, or of another version, or cannot be made.
    """
    root = Path(os.path.abspath(root))
    make_folder(root.parent)
    with locked(root.parent / _LOCK):
        if not os.path.lexists(root):
            _generate_whole(root, about, generate)
        _check_ours(root, about["version"])
        yield root


def make_folder(folder: Path) -> None:
    """Make a folder for generated data, and those around it, where they are not there.

    Raises:
        ValueError: The system refuses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be made for generated data: {error.strerror}; expected a folder that "
            f"can be written; set data_dir to one, or dataset.storage.path to your data"
        ) from error


def _check_ours(root: Path, expected: int) -> None:
    try:
        version = json.loads((root / _MARKER).read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{root}: there is something here that is not the demo set, and it is left alone; "
            f"set data_dir to another folder, or dataset.storage.path to your data"
        ) from None
    if version != expected:
        raise ValueError(
            f"{root}: the demo set of another version ({version}, expected {expected}); delete "
            f"it, and it is made again"
        )


def _generate_whole(root: Path, about: Mapping[str, Any], generate: Callable[[Path], None]) -> None:
    """Generate under another name, rename when whole; clear away what a kill left behind."""
    for left in root.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left)
    start = time.monotonic()
    log.info("making the demo set in %s", root)
    remedy = "free some space, or set data_dir to a folder elsewhere"
    with writing(root, remedy=remedy), whole_folder(root, prefix=_UNFINISHED) as folder:
        generate(folder)
        (folder / _MARKER).write_text(json.dumps(about) + "\n")
    count = sum(about["counts"].values())
    log.info("made %s samples in %.1f s", f"{count:,}", time.monotonic() - start)

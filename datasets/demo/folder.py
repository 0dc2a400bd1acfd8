"""Folders of generated data: created once and atomically; other folders stay untouched."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.files import locked, whole_folder, writing

log = logging.getLogger(__name__)

_MARKER = "penstock-demo.json"
_UNFINISHED = ".penstock-demo-unfinished-"
_LOCK = ".penstock-demo.lock"


@dataclass(frozen=True, slots=True)
class DemoSet:
    """Generated data of one kind.

    Attributes:
        folder: Its folder below ``data_dir``.
        storages: The storages that read it.
        advice: The overrides that choose it.
        about: Content of its marker file: ``version``, ``classes`` and ``counts``.
        generate: Fills a folder.
    """

    folder: str
    storages: tuple[str, ...]
    advice: str
    about: Mapping[str, Any]
    generate: Callable[[Path], None]

    def path(self, storage_name: str, data_dir: str | Path) -> Path:
        """Return the folder in `data_dir`, generated if it is missing.

        Raises:
            ValueError: The storage cannot read it, or the folder is not a demo set.
        """
        if storage_name not in self.storages:
            raise ValueError(
                f"the demo set {self.folder} is made for {' and '.join(self.storages)}, not for "
                f"{storage_name!r}; type {self.advice}, or set dataset.storage.path to your data"
            )
        with own_folder(Path(data_dir) / self.folder, self.about, self.generate) as root:
            return root


@contextlib.contextmanager
def own_folder(
    root: Path, about: Mapping[str, Any], generate: Callable[[Path], None]
) -> Iterator[Path]:
    """Generate a folder if it is missing, and lock it against other processes.

    Args:
        root: The folder; its parent is created too.
        about: Content of its marker file: ``version`` and ``counts``, the samples by split.
        generate: Fills a folder.

    Yields:
        The folder, absolute.

    Raises:
        ValueError: It is not a demo set, has another version, or cannot be created.
    """
    root = Path(os.path.abspath(root))
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{root.parent} cannot be made for generated data: {error.strerror}; expected a folder "
            f"that can be written; set data_dir to one, or dataset.storage.path to your data"
        ) from error
    with locked(root.parent / _LOCK):
        if not os.path.lexists(root):
            _generate_whole(root, about, generate)
        _check_ours(root, about["version"])
        yield root


def _check_ours(root: Path, expected: int) -> None:
    try:
        version = json.loads((root / _MARKER).read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{root}: this folder is not the demo set and stays as it is; set data_dir to another "
            f"folder, or dataset.storage.path to your data"
        ) from None
    if version != expected:
        raise ValueError(
            f"{root}: the demo set has version {version}, expected {expected}; delete the folder, "
            f"and it is made again"
        )


def _generate_whole(root: Path, about: Mapping[str, Any], generate: Callable[[Path], None]) -> None:
    """Generate under another name and rename; remove the remains of a killed attempt."""
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

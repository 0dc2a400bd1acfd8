"""Folders of generated data: created once and atomically; other folders stay untouched."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.core.files import locked, whole_folder, writing

log = logging.getLogger(__name__)

_MARKER = "penstock-demo.json"
_LOCK = ".penstock-demo.lock"


@dataclass(frozen=True, slots=True)
class DemoSet:
    """Generated data: its folder below ``data_dir``, and the `storages` that read it."""

    folder: str
    storages: tuple[str, ...]
    generate: Callable[[Path], None]

    def path(self, storage_name: str, data_dir: str | Path) -> Path:
        """Return the folder in `data_dir`, generated if it is missing."""
        if storage_name not in self.storages:
            made = f"the demo set {self.folder} is made for {' and '.join(self.storages)}"
            remedy = f"type dataset/storage={self.storages[0]}"
            raise ValueError(f"{made}, not for {storage_name!r}; {remedy}")
        with own_folder(Path(data_dir) / self.folder, self.generate) as root:
            return root


@contextlib.contextmanager
def own_folder(root: Path, generate: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder, absolute; `generate` it if it is missing, and lock out other processes."""
    root = Path(os.path.abspath(root))
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = f"{root.parent} cannot be made for generated data: {error.strerror}"
        raise ValueError(f"{said}; set data_dir, or dataset.storage.path to your data") from error
    with locked(root.parent / _LOCK):
        if not os.path.lexists(root):
            log.info("making the demo set in %s", root)
            remedy = "free some space, or set data_dir to a folder elsewhere"
            with writing(root, remedy=remedy), whole_folder(root) as folder:
                generate(folder)
                (folder / _MARKER).touch()
        if not (root / _MARKER).is_file():
            raise ValueError(f"{root}: is not the demo set; set data_dir to another folder")
        yield root


def random(seed: int, split_id: int, number: int = 0) -> np.random.Generator:
    """Return the random numbers of one drawn record."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, split_id, number, 0]))

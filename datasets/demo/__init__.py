"""Generate demo data, named by the words that replace a path."""

from __future__ import annotations

from pathlib import Path

from penstock.datasets.demo.sequences import SEQUENCES
from penstock.datasets.demo.sounds import SOUNDS
from penstock.datasets.demo.tables import TABLES

_SETS = {"demo_sequences": SEQUENCES, "demo_sounds": SOUNDS, **TABLES}


def made_here(name: str, storage_name: str, data_dir: Path) -> Path | None:
    """Return the folder of a demo set, generated if it is missing, or None for an unknown name."""
    if name == "demo":
        from penstock.datasets.demo.shapes import demo_path

        return demo_path(storage_name, data_dir)
    if name not in _SETS:
        return None
    folder = _SETS[name].path(storage_name, data_dir)
    return folder / storage_name if name in TABLES else folder

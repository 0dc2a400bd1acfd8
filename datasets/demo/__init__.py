"""Make generated data sets, by the names that stand in place of a path."""

from __future__ import annotations

from pathlib import Path

from penstock.datasets.demo.sequences import demo_sequences_path
from penstock.datasets.demo.shapes import demo_path
from penstock.datasets.demo.sounds import demo_sounds_path
from penstock.datasets.demo.tables import TABLES, table_path


def made_here(name: str, storage_name: str, data_dir: Path) -> Path | None:
    """Find a generated data set for a storage; it is made if it is not there.

    Args:
        name: What stands in place of a path.
        storage_name: Of the storage that is to read it.
        data_dir: Where generated data lies.

    Returns:
        Its folder; None where the name is that of no such data set.

    Raises:
        ValueError: The storage has none of this name.
    """
    if name == "demo":
        return demo_path(storage_name, data_dir)
    if name == "demo_sequences":
        return demo_sequences_path(storage_name, data_dir)
    if name == "demo_sounds":
        return demo_sounds_path(storage_name, data_dir)
    return table_path(name, storage_name, data_dir) if name in TABLES else None

"""Cache tables of records and what derives from them on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import map_npy
from penstock.core.files import write_whole
from penstock.core.machine_cache import computed_once, signature_of
from penstock.datasets.records.table import Table

_SPOT_CHECKS = 64


def cached_index(
    recipe: dict[str, Any],
    *,
    build: Callable[[], Table],
    is_current: Callable[[Table], bool],
) -> Table:
    """Load the table of `recipe` from the cache, or build it if the data has changed."""

    def load(path: Path) -> Table | None:
        table = Table.open(path, verify=True)
        return table if is_current(table) else None

    name = f"index-{signature_of(recipe=recipe)}"
    what = f"index of {recipe.get('path', recipe.get('storage', 'the data'))}"
    return computed_once(name, ".npz", make=lambda path: build().write(path), load=load, what=what)[
        1
    ]


def cached_selection(name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Compute rows, integer [n], once and map them from the cache afterwards.

    `name` identifies everything that the selection depends on.
    """

    def make(path: Path) -> None:
        rows = compute()
        write_whole(path, lambda file: np.save(file, rows))

    return computed_once(
        f"rows-{signature_of(name=name)}", ".npy", make=make,
        load=map_npy, what="rows of a split",
    )[1]  # fmt: skip


def cached_json(name: str, compute: Callable[[], Any]) -> Any:
    """Compute JSON values once and read them from the cache afterwards."""
    _, (values,) = computed_once(
        f"json-{signature_of(name=name)}", ".json",
        make=lambda path: path.write_text(json.dumps([compute()])),
        load=lambda path: json.loads(path.read_bytes()), what="statistics of the training part",
    )  # fmt: skip
    return values


def is_unchanged(root: str, folders: Sequence[tuple[str, int]], index: Table) -> bool:
    """Return whether a new scan would give the same `index`.

    Folder times detect added and removed files. The sizes of a few files detect overwritten ones.
    """
    try:
        for folder, mtime_ns in folders:
            if os.stat(os.path.join(root, folder)).st_mtime_ns != mtime_ns:
                return False
    except OSError:
        return False
    rows = np.unique(np.linspace(0, len(index) - 1, min(_SPOT_CHECKS, len(index))).astype(np.int64))
    sizes = index.values("size_bytes", rows).tolist()
    for key, size in zip(index.raw_keys(rows), sizes, strict=True):
        try:
            found = os.stat(os.path.join(os.fsencode(root), key)).st_size
        except OSError:
            found = 0
        if found != size:
            return False
    return True

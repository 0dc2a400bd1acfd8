"""Some records packed into a temporary folder, to measure what packing all of them would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed_config(
    config: dict[str, Any], split: Any, rows: NDArray[np.int64], folder: Path, *, tiled: bool
) -> dict[str, Any]:
    """Pack records as LMDB, and give the config that reads them.

    Args:
        config: The plain config.
        split: The split that they are of.
        rows: int64 [n], the records.
        folder: Does not exist; is made.
        tiled: Encode the images anew as tiled JPEG.
    """
    from datasets.subset import Subset
    from datasets.writers.lmdb import LmdbWriter
    from datasets.writing import write_storage
    from pipeline.build import open_storage
    from pipeline.commands.pack import PackSettings
    from pipeline.cores import usable_cores
    from pipeline.packing.recoding import make_recode

    storage: Any = Subset(open_storage(config, split), rows)
    settings = PackSettings(path=str(folder), tiled=tiled)
    recode = make_recode(config, settings) if tiled else None
    target = folder / split
    write_storage(LmdbWriter(), target, storage, recode=recode, threads=usable_cores())
    return _reading(config, {"_target_": "storage/lmdb", "path": str(folder / split)})


def eager_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config that holds decoded samples in memory."""
    held = {"_target_": "dataset/eager", "cache": None}
    return {**config, "dataset": {**config["dataset"], **held}}


def _reading(config: dict[str, Any], storage: dict[str, Any]) -> dict[str, Any]:
    dataset = {**config["dataset"], "storage": storage, "val_fraction": 0.0}
    return {**config, "dataset": dataset}


class Among:
    """A sampler that draws from a few records only, for as many positions as there are.

    Args:
        rows: int64 [k], the records.
        length: Positions of an epoch.
        seed: Of the order.
    """

    def __init__(self, rows: NDArray[np.int64], *, length: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        rounds = [rng.permutation(rows) for _ in range(-(-length // len(rows)))]
        self._order = np.concatenate(rounds)[:length]

    def __len__(self) -> int:
        return len(self._order)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Records at positions `start` to `stop`, int64."""
        return self._order[start:stop]

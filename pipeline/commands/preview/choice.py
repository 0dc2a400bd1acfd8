"""Which samples are shown, and how they are read: the originals, and as each epoch has them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from math import lcm
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.build import build_dataset
from pipeline.build_transforms import build_device_transforms
from pipeline.commands.preview.on_device import DeviceSteps
from pipeline.config.objects import build

Split = Literal["train", "val"]


@dataclass(frozen=True, slots=True)
class Looks:
    """The same records, looked at several times.

    Attributes:
        originals: A sample or a bad one for each record, not augmented.
        epochs: The same by what they are called, as the model gets them; epochs that are alike
            stand there once.
        notes: What could not be shown as it is, and why.
    """

    originals: list[Any]
    epochs: dict[str, list[Any]]
    notes: tuple[str, ...]


def look(config: dict[str, Any], split: Split, dataset: Any, sampler: Any, options: Any) -> Looks:
    """Read some samples of a split.

    Those of epoch 0 are exactly what its batches hold at these positions: positions spread over
    the epoch, and the records that the sampler puts there. The other epochs show what they would
    draw for the same records at the same positions. Evaluation is the same in every epoch. Of a
    stream it is its first items.

    Args:
        config: The plain config.
        split: The split.
        dataset: Its dataset.
        sampler: Which record stands at a position; None for a stream.
        options: ``samples`` and ``epochs``, how many.

    Raises:
        ValueError: There are no samples.
    """
    transforms = build_device_transforms(config, split)
    group = lcm(getattr(sampler, "group", 1), *(getattr(t, "group", 1) for t in transforms))
    collate = getattr(dataset, "collate", None) or build(config["collate"])
    steps = DeviceSteps(collate, transforms, group=group)
    if getattr(dataset, "needs_partners", False):
        dataset = dataset.drawing_from(sampler)
    read, positions = _reader(config, split, dataset, sampler, options.samples, group)
    shown = slice(0, options.samples)
    plain = _original(config, split)
    originals = read(plain, positions, 0)
    if getattr(plain, "collate", None) is not None:  # items are nothing before they are a batch
        originals = DeviceSteps(plain.collate, ())(originals, 0)
    epochs = [
        steps(read(dataset, positions, epoch), epoch)[shown]
        for epoch in range(1 if split == "val" else options.epochs)
    ]
    return Looks(originals[shown], _titled(epochs, split), tuple(steps.notes))


def _titled(epochs: list[list[Any]], split: Split) -> dict[str, list[Any]]:
    if split == "val":
        return {"every epoch": epochs[0]}
    if len(epochs) > 1 and all(equal(epochs[0], other) for other in epochs[1:]):
        return {f"epochs 0 to {len(epochs) - 1}, all alike": epochs[0]}
    return {f"epoch {number}": samples for number, samples in enumerate(epochs)}


def equal(one: Any, other: Any) -> bool:
    """Whether two samples, or what is in them, are the same to the last bit of every array."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "detach"):
        one, other = one.detach().cpu().numpy(), other.detach().cpu().numpy()
    if isinstance(one, (np.ndarray, np.generic)):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and one.tobytes() == other.tobytes()
    return bool(one == other)


def _original(config: dict[str, Any], split: Split) -> Any:
    """The same dataset without augmentation."""
    plain = deepcopy(config)
    plain["augment"] |= {"train": {}, "eval": {}}
    return build_dataset(plain, split)


def _reader(
    config: dict[str, Any], split: Split, dataset: Any, sampler: Any, count: int, group: int
) -> tuple[Any, NDArray[np.int64]]:
    """What reads the chosen samples of a dataset in an epoch, and their positions, int64 [n]."""
    if hasattr(dataset, "fetch_items"):
        whole = -(-count // group) * group
        stream = dataset.open(0, 0)
        try:
            items = list(islice(stream, whole))
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        _check_some(len(items), split)
        positions = np.arange(len(items), dtype=np.int64)
        return lambda source, places, epoch: source.fetch_items(items, places, epoch), positions
    _check_some(len(dataset), split)
    positions = spread(len(sampler), count, group)
    indices = np.concatenate([sampler.indices(0, p, p + 1) for p in positions.tolist()])
    return lambda source, places, epoch: source.fetch(indices, places, epoch), positions


def spread(total: int, count: int, group: int = 1) -> NDArray[np.int64]:
    """Positions spread evenly over an epoch, in whole groups, int64 [n]; n is at least `count`.

    Args:
        total: Positions in the epoch.
        count: How many are wanted.
        group: Positions that stay together, from a multiple of it on.
    """
    blocks = max(total // group, 1)
    wanted = min(-(-count // group), blocks)
    starts = np.linspace(0, blocks - 1, wanted).astype(np.int64) * group
    positions = (starts[:, None] + np.arange(group)).reshape(-1)
    return positions[positions < total]


def _check_some(count: int, split: Split) -> None:
    if not count:
        raise ValueError(
            f"preview: the split {split} has no samples; check dataset.val_fraction and what the "
            f"data holds, or set preview.split"
        )

"""Choose samples and read them: the originals, and as each epoch has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from math import lcm
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.core.contracts import (
    BatchTransform,
    Dataset,
    StreamDataset,
    abilities_of,
)
from penstock.core.sample import CUT_TOKENS, BadSample, Batch, Sample
from penstock.pipeline.build import build_dataset, build_device_transforms
from penstock.pipeline.commands.digest import batch_digest
from penstock.pipeline.instantiate import build
from penstock.pipeline.learning.inputs import describe_inputs
from penstock.pipeline.loader.contract import mapped, to_tensor
from penstock.pipeline.pictures.batch import as_bytes, filled, is_float, level_of, rows_of

Split = Literal["train", "val"]


class DeviceSteps:
    """Collates samples, applies the device's steps on the CPU and takes the batch apart.

    Args:
        collate: The configured one.
        transforms: The steps.
        group: Positions that a step looks at together.

    Attributes:
        inputs: What the model gets, in words; empty as long as there was no batch.
        notes: What could not be done, and why.
    """

    def __init__(
        self,
        collate: Callable[[list[Sample]], Batch],
        transforms: Sequence[BatchTransform],
        *,
        group: int = 1,
    ) -> None:
        self._collate = collate
        self._transforms = tuple(transforms)
        self._group = group
        self.inputs = ""
        self.notes: list[str] = []

    def __call__(self, samples: Sequence[Any], epoch: int) -> list[Any]:
        """Change samples of one epoch.

        Args:
            samples: Samples and bad ones of whole groups, in the order of their positions.
            epoch: Their epoch.

        Returns:
            Rows of the batch in place of the samples, images uint8 [H, W, C]. The samples as
            they were where they make no batch, and so is a group with a bad sample.
        """
        shown = list(samples)
        rows: list[int] = []
        for start in range(0, len(shown), self._group):
            block = range(start, min(start + self._group, len(shown)))
            if not any(isinstance(shown[row], BadSample) for row in block):
                rows += block
        if not rows:
            return shown
        try:
            batch, untouched = self._batch([shown[row] for row in rows], epoch)
        except ValueError as error:
            note = f"shown before the device's steps: {' '.join(str(error).split())}"
            if note not in self.notes:
                self.notes.append(note)
            return shown
        for row, sample in zip(rows, rows_of(batch, len(rows)), strict=True):
            own = shown[row]
            kept = {name: own[name] for name in ("key", "index", "position")}
            # Joined or nested fields have no row of their own; as they were where no step has
            # touched them.
            whole = {name: own[name] for name in untouched if name in own and name not in sample}
            merged = {**sample, **whole, **kept}
            order = [*(name for name in own if name in merged), *merged]  # as in the original
            shown[row] = {name: merged[name] for name in order}
        return shown

    def _batch(self, samples: list[Sample], epoch: int) -> tuple[Batch, list[str]]:
        """The batch after all steps, and its fields that are as the collate made them."""
        batch = mapped(self._collate(samples), to_tensor)
        collated = dict(batch)
        batch["epoch"] = torch.full((len(samples),), epoch)
        batch["valid"] = torch.ones(len(samples), dtype=torch.bool)
        if "position" not in batch:
            batch["position"] = torch.tensor([sample["position"] for sample in samples])
        ends: list[Any] = []  # what black and white become; empty where images came as floats
        for transform in self._transforms:
            before, batch = batch, transform(batch)
            if is_float(batch) and "image" in before and not is_float(before):
                levels = (filled(before["image"], level) for level in (0, 255))
                ends = [transform({**before, "image": level})["image"] for level in levels]
            elif is_float(batch) and type(transform).__name__.lower().startswith("normal"):
                ends = [transform({**before, "image": end})["image"] for end in ends]
        self.inputs = self.inputs or describe_inputs(batch)
        untouched = [name for name, value in batch.items() if value is collated.get(name)]
        if ends and is_float(batch):
            batch = {**batch, "image": as_bytes(batch["image"], *map(level_of, ends))}
        return batch, untouched


@dataclass(frozen=True, slots=True)
class Looks:
    """The same records, looked at several times.

    Attributes:
        originals: A sample or a bad one for each record, not augmented.
        epochs: The same by what they are called, as the model gets them; epochs that are alike
            stand there once.
        notes: What the model gets; what could not be shown as it is, and why.
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
    group = lcm(
        1 if sampler is None else sampler.group,
        *(abilities_of(t, BatchTransform).group for t in transforms),
    )
    steps = DeviceSteps(build(config["collate"]), transforms, group=group)
    if isinstance(dataset, Dataset):
        dataset = dataset.drawing_from(sampler)
    read = _reader(split, dataset, sampler, options.samples, group)
    shown = slice(0, options.samples)
    unchanged = {**config["augment"], "train": {}, "eval": {}}
    plain = build_dataset({**config, "augment": unchanged}, split)
    originals = read(plain, 0)
    epochs = [
        steps(read(dataset, epoch), epoch)[shown]
        for epoch in range(1 if split == "val" else options.epochs)
    ]
    notes = [f"the model gets {steps.inputs}"] if steps.inputs else []
    return Looks(originals[shown], _titled(epochs, split), (*notes, *steps.notes))


def _titled(epochs: list[list[Any]], split: Split) -> dict[str, list[Any]]:
    if split == "val":
        return {"every epoch": epochs[0]}
    if len(epochs) > 1 and len({batch_digest({"": samples}) for samples in epochs}) == 1:
        return {f"epochs 0 to {len(epochs) - 1}, all alike": epochs[0]}
    return {f"epoch {number}": samples for number, samples in enumerate(epochs)}


def _reader(
    split: Split, dataset: Any, sampler: Any, count: int, group: int
) -> Callable[[Any, int], list[Any]]:
    """Choose samples: gives what reads them, of a dataset and an epoch."""
    if isinstance(dataset, StreamDataset):
        with closing(dataset.open(0, 0)) as stream:  # type: ignore[type-var]
            items = list(islice(stream, -(-count // group) * group))
        total, positions = len(items), np.arange(len(items), dtype=np.int64)
    elif total := len(dataset):
        positions = spread(len(sampler), count, group)
        indices = np.concatenate([sampler.indices(0, p, p + 1) for p in positions.tolist()])
    if not total:
        raise ValueError(
            f"preview: the split {split} has no samples; check dataset.val_fraction and what the "
            f"data holds, or set preview.split"
        )

    def read(source: Any, epoch: int) -> list[Any]:
        if isinstance(dataset, StreamDataset):
            samples = source.fetch_items(items, positions, epoch)
        else:
            samples = source.fetch(indices, positions, epoch)
        for sample in samples:
            if not isinstance(sample, BadSample):
                sample.pop(CUT_TOKENS, None)  # as the loader does
        return list(samples)

    return read


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

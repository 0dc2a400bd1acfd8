"""The lazy dataset: records are read, decoded and transformed when a batch asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from datasets.columns import ColumnStage
from datasets.protocols import Annotations, Decoder, Storage, Transform
from datasets.record_dataset import RecordDataset, open_records
from datasets.stages import DecodeStage, deferred
from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.splits import StorageRecipe


class MapDataset(RecordDataset):
    """Positions to samples over any storage; safe to call from several threads.

    Args:
        storage: Where the records lie.
        decode: Record to sample; its ValueErrors make bad samples. One that can `defer` is
            asked to where the transform begins with a crop: then what the crop leaves out is
            not decoded, and the samples are the same.
        transform: Changes the sample, driven by the position's rng alone.
        seed: The run's seed.
        keys: Fields renamed, picked or dropped before decoding, see `DecodeStage`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        decode: Decoder,
        transform: Transform,
        seed: int,
        keys: Mapping[str, str | None] | None = None,
    ) -> None:
        stage = DecodeStage(deferred(decode, transform), keys=keys, storage=str(storage))
        super().__init__(
            storage,
            decoder=decode,
            transform=transform,
            seed=seed,
            decode=stage,
            decode_partner=DecodeStage(decode, keys=keys, storage=str(storage)),
        )
        self._columns = ColumnStage(storage, stage, transform)

    @property
    def gives_columns(self) -> bool:
        """Whether batches can be taken as a whole, from a storage of columns."""
        return self._columns.possible

    @property
    def gathers(self) -> bool:
        """Whether `fetch_columns` accepts ``gather``; see `datasets.protocols.ColumnDataset`."""
        return self._columns.gathers

    def fetch_columns(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        allocate: Callable[[int], Any] | None = None,
        gather: Callable[..., NDArray[Any]] | None = None,
    ) -> dict[str, Any] | None:
        """A batch in one take per field, or None; see `datasets.protocols.ColumnDataset`.

        `gather` is called with positions, epoch, an array of images or masks, rows, and a function
        that gives memory or None: see `datasets.protocols.GatheringStorage`.
        """
        if gather is not None:
            gather = partial(gather, positions, epoch)
        return self._columns(indices, positions, allocate, gather)


@register("dataset", "map")
def open_map(
    storage: StorageRecipe,
    *,
    decode: Decoder,
    cache: Callable[..., Storage] | None = None,
    annotations: Annotations | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    keys: Mapping[str, str | None] | None = None,
    transform: Transform,
    seed: int,
    split: Literal["train", "val"],
) -> MapDataset:
    """Records decoded when they are needed.

    Args:
        storage: How to open the storage.
        decode: Record to sample.
        cache: Wraps the storage, if given; is told `decode` and `keys`.
        annotations: Label files beside the data: boxes, masks, keypoints.
        val_fraction: Share of the records that validate, where the data has no split.
        keys: New field names by field name; null drops, ``"*": null`` drops all others.
        transform: The augmentation of this split.
        seed: The run's seed.
        split: ``train`` or ``val``.

    Raises:
        ValueError: The storage cannot be opened or split.
    """
    opened, decode = open_records(
        storage,
        decode=decode,
        cache=cache,
        annotations=annotations,
        val_fraction=val_fraction,
        keys=keys,
        split=split,
    )
    return MapDataset(opened, decode=decode, transform=transform, seed=seed, keys=keys)

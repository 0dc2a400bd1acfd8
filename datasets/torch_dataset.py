"""Any torch Dataset, map-style or iterable, as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from datasets.sample import BadSample, Batch, Sample
from datasets.torch_source import TorchSource
from pipeline.registry import register
from pipeline.rng import Stream, philox_words

if TYPE_CHECKING:
    from datasets.protocols import Transform
    from datasets.stage_times import StageTimes


@register("dataset", "torch")
def open_torch(
    *,
    target: str,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs the mapping
    val_args: dict[str, Any] | None = None,
    collate_fn: str | None = None,
    worker_init_fn: str | None = None,
    keys: list[str] = ["image", "label"],  # noqa: B006 - as above
    classes: list[str] | Annotated[int, Ge(1)] | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    transform: Transform | None = None,
    seed: int = 0,
    split: str = "train",
) -> TorchMapDataset | TorchStreamDataset:
    """Any torch Dataset, map-style or iterable, as it is.

    Args:
        target: The dataset's class.
        args: Its arguments.
        val_args: What is different in the arguments for evaluation; null: evaluation takes a
            fixed part of the same data.
        collate_fn: A user's function of raw items to a batch; it takes the place of `collate`.
        worker_init_fn: A user's function, called with the worker's number in every process
            that reads.
        keys: Names of the parts of a tuple. Mappings keep their own names.
        classes: Names of the classes by label, or how many there are; null: the dataset's own
            ``classes``, or as many as its ``targets`` say.
        val_fraction: Share of the items for evaluation where `val_args` is null, 0 to 1.
        transform: The augmentation stack.
        seed: The run's seed.
        split: ``train`` or ``val``.

    Raises:
        ValueError: The class is no torch Dataset, or `collate_fn` meets a stack of steps.
    """
    from torch.utils.data import Dataset, IterableDataset

    cls: Any = target
    if not (isinstance(cls, type) and issubclass(cls, Dataset)):
        raise ValueError(f"dataset torch: target is {cls!r}; give a subclass of torch's Dataset")
    own_split = val_args is None
    wanted = args if own_split or split == "train" else {**args, **(val_args or {})}
    source = TorchSource(
        dataset=cls(**wanted),
        keys=tuple(keys),
        classes=tuple(map(str, range(classes))) if isinstance(classes, int) else classes,
        collate_fn=collate_fn,  # type: ignore[arg-type]
        worker_init_fn=worker_init_fn,  # type: ignore[arg-type]
        transform=transform,
        seed=seed,
    )
    part = (split, val_fraction) if own_split else ("train", 0.0)
    if issubclass(cls, IterableDataset):
        return TorchStreamDataset(source, split=part[0], val_fraction=part[1])
    return TorchMapDataset(source, split=part[0], val_fraction=part[1])


class _OwnCollate:
    """Gives a dataset the attribute `collate` where the user has a collate_fn."""

    _source: TorchSource

    # Foreign code finds the global states seeded and may keep state of its own: no two threads
    # of a process may run it.
    global_random = True

    @property
    def collate(self) -> Callable[[list[Sample]], Batch] | None:
        """The user's collate_fn, or None for the configured collate."""
        return self._source.collate if self._source.collate_fn is not None else None


class TorchMapDataset(_OwnCollate):
    """A map-style torch Dataset.

    Pickles with the foreign object, as torch's own loader does.

    Args:
        source: The foreign dataset.
        split: ``train`` or ``val``.
        val_fraction: Share of the items that is for evaluation.
    """

    def __init__(self, source: TorchSource, *, split: str, val_fraction: float) -> None:
        self._source = source
        self._items: NDArray[np.int64] | None = None
        try:
            self._length = len(source.dataset)
        except (TypeError, NotImplementedError):
            raise ValueError(
                f"dataset torch: {source.name} has no length; give it __len__, or make it an "
                f"IterableDataset"
            ) from None
        if val_fraction or split == "val":
            is_val = _is_val(0, self._length, val_fraction)
            self._items = np.flatnonzero(is_val == (split == "val"))
            self._length = self._items.size
        self.index = TorchIndex(source, self._items, self._length)

    def __len__(self) -> int:
        return self._length

    def fetch(
        self, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> list[Sample | BadSample]:
        """Samples of the records `indices`, int64 [n], drawn at `positions`, int64 [n]."""
        self._source.initialise()
        return [
            self._fetch_one(index, position, epoch)
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True)
        ]

    def _fetch_one(self, index: int, position: int, epoch: int) -> Sample | BadSample:
        item = index if self._items is None else int(self._items[index])
        return self._source.sample(
            lambda: self._source.dataset[item], index=index, position=position, epoch=epoch
        )

    def fingerprint(self) -> str:
        """Hash of the class, the length and the labels, where the dataset offers them."""
        return self.index.fingerprint()


class TorchStreamDataset(_OwnCollate):
    """An iterable torch Dataset: one reader, in order; its items are sent to the workers.

    Resuming reads the stream again from its beginning and throws away what was had.

    Args:
        source: The foreign dataset.
        split: ``train`` or ``val``.
        val_fraction: Share of the items that is for evaluation.
    """

    row_shape = None

    def __init__(self, source: TorchSource, *, split: str, val_fraction: float) -> None:
        self._source = source
        self.class_names = source.class_names
        self._split = split
        self._val_fraction = val_fraction

    def open(self, epoch: int, start: int) -> Iterator[Any]:
        """Items of the epoch from position `start` on."""
        kept = 0
        for number, item in enumerate(self._source.items(epoch)):
            is_val = bool(_is_val(number, number + 1, self._val_fraction)[0])
            if is_val == (self._split == "val"):
                kept += 1
                if kept > start:
                    yield item

    def fetch_items(
        self,
        items: Sequence[Any],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Turn raw items into samples; `index` is the position. Arrays stay where they are."""
        return [
            self._source.sample(
                partial(_same, item), index=position, position=position, epoch=epoch
            )
            for item, position in zip(items, positions.tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        """Hash of the class; what a stream holds is not known before it is read."""
        return hashlib.blake2b(self._source.name.encode(), digest_size=16).hexdigest()


class TorchIndex:
    """What a map-style torch Dataset tells about its items: numbers, and labels if it has any."""

    def __init__(self, source: TorchSource, items: NDArray[np.int64] | None, length: int) -> None:
        dataset = source.dataset
        self._name = source.name
        self._length = length
        labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
        self._labels = _label_column(labels, len(dataset))
        self.class_names = source.class_names
        if self.class_names is None and self._labels is not None and self._labels.size:
            self.class_names = tuple(map(str, range(int(self._labels.max()) + 1)))
        if self._labels is not None and items is not None:
            self._labels = self._labels[items]

    def __len__(self) -> int:
        return self._length

    @property
    def columns(self) -> tuple[str, ...]:
        """``label``, if the dataset has ``targets`` or ``labels``."""
        return ("label",) if self._labels is not None else ()

    def column(self, name: str) -> NDArray[Any]:
        """The labels, int64 [len(self)]."""
        if name != "label" or self._labels is None:
            raise KeyError(f"no column {name!r}; columns: {', '.join(self.columns) or 'none'}")
        return self._labels

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """The numbers of the items, as strings."""
        return [str(index) for index in indices.tolist()]

    def fingerprint(self) -> str:
        """Hash of the class, the length and the labels."""
        digest = hashlib.blake2b(f"{self._name} {self._length}".encode(), digest_size=16)
        if self._labels is not None:
            digest.update(np.ascontiguousarray(self._labels).tobytes())
        return digest.hexdigest()


def _label_column(labels: Any, length: int) -> NDArray[np.int64] | None:
    try:
        column = np.asarray(labels)
    except (TypeError, ValueError):
        return None
    if column.shape != (length,) or not np.issubdtype(column.dtype, np.integer):
        return None
    return column.astype(np.int64)


def _is_val(start: int, stop: int, val_fraction: float) -> NDArray[np.bool_]:
    """Which items are for evaluation: by a hash of their number, whatever their count."""
    words = philox_words(0, 0, start, stop, Stream.SAMPLER)[:, 3]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < val_fraction


def _same(item: Any) -> Any:
    return item

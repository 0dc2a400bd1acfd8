"""Use any torch Dataset, map-style or iterable, unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core import contracts
from penstock.core.contracts import (
    TransformCapabilities,
    capabilities_of,
)
from penstock.core.registry import register
from penstock.core.rng import KeyedRng, Stream, philox_words
from penstock.core.sample import BadSample, Batch, Sample
from penstock.core.user_errors import is_trouble
from penstock.datasets.records.labels import are_codes
from penstock.datasets.records.table import Table, numbered
from penstock.datasets.streams.runs import Run

if TYPE_CHECKING:
    from penstock.core.contracts import Transform
    from penstock.core.rng import GlobalStates
    from penstock.core.stage_times import StageTimes


_ITEM = "item"
_KEY = "key"
_AT_ONCE = 64
MOST_READERS = 1024


@register("dataset", "torch")
def open_torch(
    *,
    target: str,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs a mapping
    val_args: dict[str, Any] | None = None,
    test_args: dict[str, Any] | None = None,
    collate_fn: str | None = None,
    worker_init_fn: str | None = None,
    keys: list[str] = ["image", "label"],  # noqa: B006 - as above
    classes: list[str] | Annotated[int, Ge(1)] | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    readers: Annotated[int, Ge(1), Le(MOST_READERS)] = 1,
    transform: Transform | None = None,
    seed: int = 0,
    split: str = "train",
) -> TorchMapDataset | TorchStreamDataset:
    """Use any torch Dataset, map-style or iterable, unchanged.

    Args:
        target: The dataset's class.
        args: Its arguments.
        val_args: Arguments that differ for validation; null: a fixed part of the same data
            validates, see `val_fraction`.
        test_args: Arguments that differ for the test split; null: no test split.
        collate_fn: A function of raw items to a batch; replaces `collate`.
        worker_init_fn: A function of the worker's number, called in every process that reads.
        keys: Names of the parts of a tuple. Mappings keep their own names. ``key`` is the key by
            which the items of an IterableDataset are split.
        classes: Class names by label, or their number; null: the dataset's own ``classes``, or
            their number by its ``targets``.
        val_fraction: Validation share of the items if `val_args` is null, 0 to 1. Items with an
            index are split by it, items of an IterableDataset by their key.
        readers: Parts of an IterableDataset to read in parallel. The dataset finds its part with
            ``get_worker_info()`` (and `worker_init_fn`), as one of so many workers, however many
            processes read. Each part fills the same number of rows of a batch. 1: one reader.
        transform: The augmentation stack.
        seed: The run's seed.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: The class is not a torch Dataset, the split is missing, an IterableDataset
            without keys would be split, or `collate_fn` is combined with augmentation steps.
    """
    from torch.utils.data import Dataset, IterableDataset

    cls: Any = target
    if not (isinstance(cls, type) and issubclass(cls, Dataset)):
        raise ValueError(f"dataset torch: target is {cls!r}; give a subclass of torch's Dataset")
    if split == "test" and test_args is None:
        raise ValueError(
            "dataset torch: the test split is not given; give the arguments that differ with "
            "dataset.test_args={...}"
        )
    different = {"val": val_args, "test": test_args}.get(split) or {}
    source = TorchSource(
        dataset=cls(**{**args, **different}),
        keys=tuple(keys),
        classes=tuple(map(str, range(classes))) if isinstance(classes, int) else classes,
        collate_fn=collate_fn,  # type: ignore[arg-type]
        worker_init_fn=worker_init_fn,  # type: ignore[arg-type]
        transform=transform,
        seed=seed,
    )
    part = (split, val_fraction) if val_args is None and split != "test" else ("train", 0.0)
    if issubclass(cls, IterableDataset):
        if 0 < part[1] < 1 and _KEY not in keys:
            raise ValueError(
                f"dataset torch: got dataset.val_fraction={val_fraction:g}, and the order of "
                f"{source.name} may differ in each epoch; expected items with a key to split them "
                f"by: give each item a {_KEY!r} and type dataset.keys=[{','.join([*keys, _KEY])}]; "
                f"or type dataset.val_args={{...}} for validation data of its own, or "
                f"dataset.val_fraction=0 for none"
            )
        return TorchStreamDataset(source, split=part[0], val_fraction=part[1], readers=readers)
    if readers > 1:
        raise ValueError(
            f"dataset torch: readers={readers} is for an IterableDataset, and {source.name} has an "
            f"index, which all workers read; leave dataset.readers away"
        )
    return TorchMapDataset(source, split=part[0], val_fraction=part[1])


class TorchMapDataset(contracts.Dataset):
    """A map-style torch Dataset.

    It pickles with the user's object, as torch's own loader does. User code sees seeded global
    random states and may keep state, so it runs in its own process.
    """

    global_random = True

    def __init__(self, source: TorchSource, *, split: str, val_fraction: float) -> None:
        self._source = source
        if source.collate_fn is not None:
            self.collate = source.collate
        self._items: NDArray[np.int64] | None = None
        try:
            self._length = len(source.dataset)
        except (TypeError, NotImplementedError):
            raise ValueError(
                f"dataset torch: {source.name} lacks a length; give it __len__, or make it an "
                f"IterableDataset"
            ) from None
        if val_fraction or split == "val":
            is_val = _is_val(0, self._length, val_fraction)
            self._items = np.flatnonzero(is_val == (split == "val"))
            self._length = self._items.size
        self.index = _table_of(source, self._items, self._length)

    def __len__(self) -> int:
        return self._length

    def fetch(
        self, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> list[Sample | BadSample]:
        """Return samples of the records `indices`, int64 [n], drawn at `positions`, int64 [n]."""
        self._source.initialise()
        items = indices if self._items is None else self._items[indices]
        read = self._source.together(items.tolist())
        return [
            self._source.sample(read, row, index=index, position=position, epoch=epoch)
            for row, (index, position) in enumerate(
                zip(indices.tolist(), positions.tolist(), strict=True)
            )
        ]

    def fingerprint(self) -> str:
        """Hash the class, the length and the labels, if the dataset provides them."""
        return self.index.fingerprint()


class TorchStreamDataset(contracts.StreamDataset):
    """An iterable torch Dataset: processes read its items, in order.

    A resumed run reads the stream from its beginning and drops used items. The hash of its key
    assigns an item to validation.
    """

    foreign_reader = True

    def __init__(
        self, source: TorchSource, *, split: str, val_fraction: float, readers: int = 1
    ) -> None:
        from penstock.datasets.streams.sources import KeptByHash

        self._source = source
        # The reader's process seeds the global states; a user's collate_fn may also need seeds.
        self.global_random = source.collate_fn is not None or source.transform_draws
        if source.collate_fn is not None:
            self.collate = source.collate
        self.readers = readers
        self.class_names = source.class_names
        self._kept = KeptByHash("val" if split == "val" else "train", val_fraction)

    def open(self, epoch: int, start: int, reader: int = 0) -> Iterator[Any]:
        """Yield the items of a reader in the epoch, beginning with number `start`."""
        kept = self._kept
        if kept.none:
            return
        items = self._items(epoch, reader)
        if not kept.all:
            items = filter(self._is_kept, items)
        yield from islice(items, start, None)

    def _is_kept(self, item: Any) -> bool:
        if item is None:  # training reports a bad item
            return self._kept.split == "train"
        key = self._source.key_of(item)
        if key is None:
            raise ValueError(
                f"{self._source.name}: got an item without a {_KEY!r}, expected one in each item, "
                f"as dataset.keys names it; add it, or type dataset.val_fraction=0"
            )
        return self._kept(key)

    def _items(self, epoch: int, reader: int) -> Iterator[Any]:
        readers = self.readers
        if readers == 1:
            return self._source.items(epoch)
        return self._source.items(epoch, part=_Part(reader, readers, self._source))

    def fetch_items(
        self,
        items: Sequence[Any],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Convert raw items to samples; `index` is the position. Arrays are not copied."""
        seeds, key_of = self.global_random, self._source.key_of
        samples = []
        for item, at in zip(items, positions.tolist(), strict=True):
            with self._source.seeded(epoch, at) if seeds else nullcontext():
                key = key_of(item)
                samples.append(self._source.sample_of(item, at, position=at, epoch=epoch, key=key))
        return samples

    def fingerprint(self) -> str:
        """Hash the class and the split; the content of a stream is unknown before reading."""
        text = f"{self._source.name} {self._kept!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _table_of(source: TorchSource, items: NDArray[np.int64] | None, length: int) -> Table:
    """Return the table of a map-style torch Dataset: item numbers, and labels if it has any."""
    dataset, names = source.dataset, source.class_names
    labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
    column = _label_column(labels, len(dataset))
    if names is None and column is not None and column.size:
        highest = int(column.max())
        if are_codes(column):
            raise ValueError(
                f"{source.name}: label {highest} is a code, expected class ids; return class ids "
                f"from 0 on, or name the classes 0 to {highest} in dataset.classes"
            )
        names = tuple(map(str, range(highest + 1)))
    columns = {} if column is None else {"label": column if items is None else column[items]}
    return Table(numbered(length), columns, names, content=source.name)


class TorchSource:
    """The user's dataset, and the conversion of its items to samples.

    Python's, NumPy's and torch's global random states are seeded for each position while user
    code runs, and restored afterwards.
    """

    def __init__(
        self,
        *,
        dataset: Any,
        keys: tuple[str, ...],
        classes: Sequence[str] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        transform: Transform | None,
        seed: int,
    ) -> None:
        if collate_fn is not None and _has_steps(transform):
            raise ValueError(
                "dataset torch: collate_fn takes the items as they are, so no augmentation step "
                "can change them; set augment.train=null augment.eval=null, or drop "
                "dataset.collate_fn"
            )
        self.dataset = dataset
        self.name = f"torch {type(dataset).__module__}.{type(dataset).__qualname__}"
        self._keys = keys
        self.class_names = _class_names(dataset) if classes is None else tuple(classes)
        self.collate_fn = collate_fn
        self._worker_init_fn = worker_init_fn
        self._transform = transform if _has_steps(transform) else None
        self._seed = seed
        self._initialised_in: int | None = None
        self._draws = False

    @property
    def transform_draws(self) -> bool:
        """Return whether the steps draw from global random states."""
        return capabilities_of(self._transform, TransformCapabilities).global_random

    def initialise(self) -> None:
        """Call the user's worker_init_fn once in every process that reads."""
        if self._worker_init_fn is None or self._initialised_in == os.getpid():
            return
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        self._worker_init_fn(worker.id if worker is not None else 0)
        self._initialised_in = os.getpid()

    def items(self, epoch: int, part: _Part | None = None) -> Iterator[Any]:
        """Iterate over an iterable dataset or a part of it, with its own global random states."""
        if part is None:
            self.initialise()
        elif self._worker_init_fn is not None:
            with _told(part):
                self._worker_init_fn(part.number)
            part.asked = True  # the function knew the part
        dataset = self.dataset if part is None else part.dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        states = self.seeded(epoch, part.number if part else 0)
        with states, _told(part):
            iterator = iter(dataset)
        run: Run | None = None
        while run is None or not run.is_last:
            # Read fast items in groups: switching the states takes as long as an item.
            with states, _told(part):
                run = Run(iterator, _AT_ONCE)
            if part is not None and not part.asked:
                raise ValueError(
                    f"{self.name} did not ask torch.utils.data.get_worker_info() which part it "
                    f"is, so each of dataset.readers={part.num_workers} would give all of it; give "
                    f"every num_workers-th item from its id on, or set dataset.readers=1"
                )
            yield from run

    def seeded(self, epoch: int, position: int) -> GlobalStates:
        """Return a context with the global random states of a position."""
        from penstock.core.rng import GlobalStates

        draws = KeyedRng().at(self._seed, epoch, position, Stream.GLOBAL)
        return GlobalStates(int(draws.integers(1 << 63)))

    def together(self, numbers: list[int]) -> Callable[[int], Any]:
        """Return a function that reads the items `numbers` by row.

        ``__getitems__`` reads them at once, unless it draws, raises, or does not return a list.
        Then each item is read alone, with the draws of its position.
        """
        from penstock.core.rng import GlobalStates

        read = getattr(self.dataset, "__getitems__", None)
        if read is not None and not self._draws:
            items, states = None, GlobalStates(0)
            with suppress(Exception), states:
                items = read(numbers)
            self._draws = not states.untouched
            if isinstance(items, list) and len(items) == len(numbers) and not self._draws:
                return items.__getitem__
        return lambda row: self.dataset[numbers[row]]

    def key_of(self, item: Any) -> str | None:
        """Return the key of an item: its part ``key``; None without one."""
        if isinstance(item, Mapping):
            key = item.get(_KEY)
        else:
            parts = item if isinstance(item, (tuple, list)) else (item,)
            key = next((part for name, part in zip(self._keys, parts, strict=False)
                        if name == _KEY), None)  # fmt: skip
        return None if key is None else str(_plain(key, _KEY))

    def sample(
        self,
        read: Callable[[int], Any],
        row: int,
        *,
        index: int,
        position: int,
        epoch: int,
    ) -> Sample | BadSample:
        """Read an item by its row and make its sample, with seeded global states.

        ``None``, and a ValueError or OSError of the read, is a bad sample.
        """
        with self.seeded(epoch, position):
            try:
                item = read(row)
            except (ValueError, OSError) as error:
                if is_trouble(error):
                    raise
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                return BadSample(index, str(index), position, cause, self.name)
            return self.sample_of(item, index, position=position, epoch=epoch)

    def sample_of(
        self, item: Any, index: int, *, position: int, epoch: int, key: str | None = None
    ) -> Sample | BadSample:
        """Make the sample of an item; None makes a bad one. `key` is `index` by default."""
        key = key or str(index)
        if item is None:
            return BadSample(index, key, position, "the dataset gave None", self.name)
        sample = {_ITEM: item} if self.collate_fn is not None else self._named(item)
        sample |= {"index": index, "key": key, "position": position}
        if self._transform is not None:
            _check_image(sample.get("image"), f"{self.name}: item {key}")
            rng = KeyedRng().at(self._seed, epoch, position, Stream.AUGMENT)
            sample = self._transform(sample, rng)
        return sample

    def _named(self, item: Any) -> Sample:
        if isinstance(item, Mapping):
            return {str(name): _plain(value, str(name)) for name, value in item.items()}
        parts = self._parts(item, "an item has")
        return {name: _plain(part, name) for name, part in parts.items()}

    def _parts(self, value: Any, gives: str) -> dict[str, Any]:
        parts = value if isinstance(value, (tuple, list)) else (value,)
        if len(parts) > len(self._keys):
            raise ValueError(
                f"{self.name}: {gives} {len(parts)} parts and dataset.keys names "
                f"{len(self._keys)}: {', '.join(self._keys)}; name them all"
            )
        return dict(zip(self._keys, parts, strict=False))

    def collate(self, samples: list[Sample]) -> Batch:
        """Call the user's collate_fn on raw items; return a dict."""
        import torch

        assert self.collate_fn is not None
        out = self.collate_fn([sample[_ITEM] for sample in samples])
        if isinstance(out, Mapping):
            batch = {str(name): value for name, value in out.items()}
        else:
            batch = self._parts(out, "collate_fn gives")
        for name, value in batch.items():
            if isinstance(value, np.ndarray):
                batch[name] = torch.from_numpy(value)
        batch["index"] = torch.tensor([sample["index"] for sample in samples])
        batch["position"] = torch.tensor([sample["position"] for sample in samples])
        batch["key"] = [sample["key"] for sample in samples]
        return batch


def _plain(value: Any, name: str) -> Any:
    """Convert a PIL image (an ``image`` to RGB) or a tensor to an array of the same layout."""
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # a PIL image
        value = np.array(value.convert("RGB") if name == "image" else value)
    elif hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return value.item()
    return value


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    names = getattr(dataset, "classes", None)
    is_names = isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names)
    return tuple(names) if is_names and names else None


def _check_image(image: Any, where: str) -> None:
    """Raise ValueError unless an image is [H, W] or [H, W, C], as augmentation steps assume."""
    if image is None:
        return
    shape = getattr(image, "shape", None)
    channels_first = shape is not None and len(shape) == 3 and shape[0] <= 4 < shape[2]
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3) or channels_first:
        got = f"{image.dtype} {list(shape)}" if shape is not None else type(image).__name__
        raise ValueError(
            f"{where}: augmentation steps need an image [H, W, C], got {got}; give the PIL image "
            f"or the array (leave ToTensor away), or take the steps away with "
            f"augment.train=null augment.eval=null"
        )


def _has_steps(transform: Transform | None) -> bool:
    return not (transform is None or capabilities_of(transform, TransformCapabilities).unchanged)


def _label_column(labels: Any, length: int) -> NDArray[np.int64] | None:
    try:
        column = np.asarray(labels)
    except (TypeError, ValueError):
        return None
    if column.shape != (length,) or not np.issubdtype(column.dtype, np.integer):
        return None
    return column.astype(np.int64)


def _is_val(start: int, stop: int, val_fraction: float) -> NDArray[np.bool_]:
    """Choose the items for validation by a hash of their number, bool [stop - start]."""
    words = philox_words(0, 0, start, stop, Stream.SAMPLER)[:, 3]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < val_fraction


class _Part:
    """The value of ``get_worker_info()`` while a part of a stream is read.

    `dataset` is a copy, which a ``worker_init_fn`` may change. `asked`: user code has read `id`.
    """

    def __init__(self, number: int, parts: int, source: TorchSource) -> None:
        self.number = number
        self.num_workers = parts
        self.seed = 0
        try:
            self.dataset = deepcopy(source.dataset)
        except Exception:  # for example an open file
            self.dataset = copy(source.dataset)
        self.asked = False

    @property
    def id(self) -> int:
        """Return the number of the part, and note that user code asked for it."""
        self.asked = True
        return self.number


@contextmanager
def _told(part: _Part | None) -> Iterator[None]:
    """Make torch's ``get_worker_info`` return a part."""
    if part is None:
        yield
        return
    from torch.utils.data._utils import worker

    before, worker._worker_info = worker._worker_info, part  # type: ignore[assignment]
    try:
        yield
    finally:
        worker._worker_info = before

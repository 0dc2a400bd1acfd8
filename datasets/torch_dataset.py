"""Use any torch Dataset, map-style or iterable, unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from penstock.core import contracts
from penstock.core.contracts import Transform, abilities_of
from penstock.core.registry import register
from penstock.core.rng import KeyedRng, Stream, philox_words
from penstock.core.sample import BadSample, Sample
from penstock.core.user_errors import is_trouble
from penstock.datasets.records.labels import are_codes
from penstock.datasets.records.table import Table, numbered
from penstock.datasets.streams.runs import runs

if TYPE_CHECKING:
    from penstock.core.rng import GlobalStates
    from penstock.core.stage_times import StageTimes

    Int64Array = NDArray[np.int64]


_KEY = "key"
_AT_ONCE = 64


@register("dataset", "torch")
def open_torch(
    *,
    target: str,
    args: dict[str, Any] = {},  # noqa: B006 - never changed; a config option needs a mapping
    val_args: dict[str, Any] | None = None,
    test_args: dict[str, Any] | None = None,
    keys: list[str] = ["image", "label"],  # noqa: B006 - as above
    classes: list[str] | Annotated[int, Ge(1)] | None = None,
    val_fraction: Annotated[float, Ge(0), Le(1)] = 0.2,
    readers: Annotated[int, Ge(1), Le(1024)] = 1,
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
        keys: Names of the parts of a tuple. Mappings keep their own names. ``key`` is the key by
            which the items of an IterableDataset are split.
        classes: Class names by label, or their number; null: the dataset's own ``classes``, or
            their number by its ``targets``.
        val_fraction: Validation share of the items if `val_args` is null, 0 to 1.
        readers: Parts of an IterableDataset to read in parallel. The dataset finds its part with
            ``get_worker_info()``, however many processes read.
        transform: The augmentation stack.
        seed: The run's seed.
        split: ``train``, ``val`` or ``test``.
    """
    from torch.utils.data import IterableDataset

    if split == "test" and test_args is None:
        raise ValueError("dataset torch: no test split is given; set dataset.test_args={...}")
    cls: Any = target
    different = {"val": val_args, "test": test_args}.get(split) or {}
    items = TorchItems(cls(**{**args, **different}), tuple(keys), transform, seed)
    if classes is not None:
        names = map(str, range(classes)) if isinstance(classes, int) else classes
        items.class_names = tuple(names)
    share = val_fraction if val_args is None and split != "test" else None
    if not issubclass(cls, IterableDataset):
        if readers > 1:
            said = "reads in parts, and this is a map-style Dataset; type dataset.readers=1"
            raise ValueError(f"{items.name}: dataset.readers={readers} {said}")
        return TorchMapDataset(items, split, share)
    return TorchStreamDataset(items, split, share, readers)


class TorchMapDataset(contracts.Dataset):
    """A map-style torch Dataset; user code runs in its own process, with seeded random states."""

    global_random = True

    def __init__(self, items: TorchItems, split: str, val_fraction: float | None) -> None:
        self._items = items
        self._numbers = np.arange(len(items.dataset))
        if val_fraction is not None:
            is_val = _is_val(self._numbers.size, val_fraction)
            self._numbers = np.flatnonzero(is_val == (split == "val"))
        self.index = _table_of(items, self._numbers)

    def __len__(self) -> int:
        return self._numbers.size

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        numbers = self._numbers[indices]
        rows = zip(numbers.tolist(), indices.tolist(), positions.tolist(), strict=True)
        return [self._items.read(number, index, at, epoch) for number, index, at in rows]

    def fingerprint(self) -> str:
        return self.index.fingerprint()


class TorchStreamDataset(contracts.StreamDataset):
    """An iterable torch Dataset, read in order and split by keys; a resumed run skips items."""

    foreign_reader = True

    def __init__(
        self, items: TorchItems, split: str, val_fraction: float | None, readers: int
    ) -> None:
        from penstock.datasets.streams.sources import KeptByHash

        self._items = items
        self.global_random = abilities_of(items.transform, Transform).global_random
        self.readers = readers
        self.class_names = items.class_names
        is_val = split == "val" and val_fraction is not None
        self._kept = KeptByHash("val" if is_val else "train", val_fraction or 0.0)

    def open(self, epoch: int, start: int, reader: int = 0) -> Iterator[Any]:
        if self._kept.none:
            return
        items = self._items.part(epoch, reader, self.readers)
        yield from islice(items if self._kept.all else filter(self._is_kept, items), start, None)

    def _is_kept(self, item: Any) -> bool:
        if item is None:  # training reports a bad item
            return self._kept.split == "train"
        if (key := self._items.key_of(item)) is None:
            raise ValueError(
                f"{self._items.name}: items are split by {_KEY!r}, which an item lacks; name it in "
                f"dataset.keys, or set dataset.val_args={{...}} or dataset.val_fraction=0"
            )
        return self._kept(key)

    def fetch_items(
        self,
        items: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        return [
            self._items.sample_of(item, at, self._items.key_of(item) or str(at), at, epoch)
            for item, at in zip(items, positions.tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        text = f"{self._items.name} {self._kept!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _table_of(items: TorchItems, numbers: Int64Array) -> Table:
    """Return the table of a map-style torch Dataset: item numbers, and labels if it has any."""
    dataset, names, keys = items.dataset, items.class_names, numbered(numbers.size)
    labels: Any = None
    with suppress(TypeError, ValueError):
        labels = np.asarray(getattr(dataset, "targets", getattr(dataset, "labels", None)))
    if labels is None or labels.shape != (len(dataset),) or labels.dtype.kind not in "iu":
        return Table(keys, {}, names, content=items.name)
    if names is None and labels.size:
        highest = int(labels.max())
        if are_codes(labels):
            said = f"label {highest} is a code, expected class ids"
            raise ValueError(f"{items.name}: {said}; name 0 to {highest} in dataset.classes")
        names = tuple(map(str, range(highest + 1)))
    return Table(keys, {"label": labels.astype(np.int64)[numbers]}, names, content=items.name)


@dataclass
class TorchItems:
    """The items of the user's dataset, whose code sees global random states by position."""

    dataset: Any
    keys: tuple[str, ...]
    transform: Transform | None
    seed: int

    def __post_init__(self) -> None:
        if abilities_of(self.transform, Transform).unchanged:
            self.transform = None
        cls = type(self.dataset)
        names: Any = getattr(self.dataset, "classes", None)
        self.name = f"torch {cls.__module__}.{cls.__qualname__}"
        has_names = isinstance(names, (list, tuple)) and names
        self.class_names = tuple(map(str, names)) if has_names else None

    def part(self, epoch: int, number: int, count: int) -> Iterator[Any]:
        """Iterate over part `number` of `count`, with its own global random states."""
        part, dataset = None, self.dataset
        if count > 1:
            dataset = deepcopy(dataset)
            part = _Part(number, count, dataset)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        states = self.seeded(epoch, number)
        with states, _told(part):
            # Read fast items in groups: switching the states takes as long as an item.
            groups = runs(iter(dataset), _AT_ONCE)
        group: list[Any] | None = []
        while group is not None:
            yield from group
            with states, _told(part):
                group = next(groups, None)
            if part is not None and not part.asked:
                said = "did not ask torch.utils.data.get_worker_info() for its part"
                remedy = "each of dataset.readers would give all of it; set dataset.readers=1"
                raise ValueError(f"{self.name} {said}; {remedy}")

    def seeded(self, epoch: int, position: int) -> GlobalStates:
        """Return a context with the global random states of a position."""
        from penstock.core.rng import GlobalStates

        draws = KeyedRng().at(self.seed, epoch, position, Stream.GLOBAL)
        return GlobalStates(int(draws.integers(1 << 63)))

    def key_of(self, item: Any) -> str | None:
        """Return the key of an item: its part ``key``; None without one."""
        key = None if item is None else self._parts(item).get(_KEY)
        return None if key is None else str(_plain(key, _KEY))

    def read(self, number: int, index: int, position: int, epoch: int) -> Sample | BadSample:
        """Read an item and make its sample; None, ValueError and OSError make a bad sample."""
        with self.seeded(epoch, position):
            try:
                item = self.dataset[number]
            except (ValueError, OSError) as error:
                if is_trouble(error):
                    raise
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                return BadSample(index, str(index), position, cause, self.name)
            return self.sample_of(item, index, str(index), position, epoch)

    def sample_of(
        self, item: Any, index: int, key: str, position: int, epoch: int
    ) -> Sample | BadSample:
        """Make the sample of an item; None makes a bad one."""
        if item is None:
            return BadSample(index, key, position, "the dataset gave None", self.name)
        sample: Sample = {name: _plain(part, name) for name, part in self._parts(item).items()}
        sample |= {"index": index, "key": key, "position": position}
        if self.transform is None:
            return sample
        if "image" in sample:
            _check_image(sample["image"], f"{self.name}: item {key}")
        return self.transform(sample, KeyedRng().at(self.seed, epoch, position, Stream.AUGMENT))

    def _parts(self, item: Any) -> dict[str, Any]:
        if isinstance(item, Mapping):
            return {str(name): part for name, part in item.items()}
        parts = item if isinstance(item, (tuple, list)) else (item,)
        if len(parts) > len(self.keys):
            what = f"an item has {len(parts)} parts and dataset.keys names {len(self.keys)}"
            raise ValueError(f"{self.name}: {what}: {', '.join(self.keys)}; name them all")
        return dict(zip(self.keys, parts, strict=False))


def _plain(value: Any, name: str) -> Any:
    """Convert a PIL image (an ``image`` to RGB) or a tensor to an array of the same layout."""
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # a PIL image
        value = np.array(value.convert("RGB") if name == "image" else value)
    elif hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return value.item()
    return value


def _check_image(image: Any, where: str) -> None:
    """Raise ValueError unless an image is [H, W] or [H, W, C], as augmentation steps assume."""
    shape = np.shape(image)
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] <= 4 < shape[2]):
        raise ValueError(
            f"{where}: steps need an image [H, W, C], got {list(shape)}; leave ToTensor away, or "
            f"set augment.train=null augment.eval=null"
        )


def _is_val(count: int, val_fraction: float) -> NDArray[np.bool_]:
    """Choose the items for validation by a hash of their number, bool [count]."""
    words = philox_words(0, 0, 0, count, Stream.SAMPLER)[:, 3]
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < val_fraction


@dataclass
class _Part:
    """The value of ``get_worker_info()`` while a part is read; `asked`: user code has read `id`."""

    number: int
    num_workers: int
    dataset: Any
    seed: int = 0
    asked: bool = False

    @property
    def id(self) -> int:
        """Return the number of the part, and note that user code asked for it."""
        self.asked = True
        return self.number


@contextmanager
def _told(part: _Part | None) -> Iterator[None]:
    """Make torch's ``get_worker_info`` return a part, or None."""
    from torch.utils.data._utils import worker

    before, worker._worker_info = worker._worker_info, part  # type: ignore[assignment]
    try:
        yield
    finally:
        worker._worker_info = before

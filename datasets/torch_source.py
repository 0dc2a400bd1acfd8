"""A torch Dataset of somebody else's, and how its items become samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sample import BadSample, Batch, Sample
from pipeline.rng import KeyedRng, Stream

if TYPE_CHECKING:
    from datasets.protocols import Transform

_ITEM = "item"
_END = object()


class TorchSource:
    """The foreign dataset and how its items become samples.

    Foreign code finds Python's, NumPy's and torch's global random states seeded for every
    position; afterwards they are as they were.

    Args:
        dataset: The foreign object.
        keys: Names of the parts of a tuple.
        classes: Class names by label, or None for the dataset's own ``classes``.
        collate_fn: The user's collate, or None.
        worker_init_fn: Called with the worker's number in every process that reads.
        transform: The augmentation stack.
        seed: The run's seed.

    Raises:
        ValueError: There is a `collate_fn`, and a stack of steps as well.
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

    def initialise(self) -> None:
        """Call the user's worker_init_fn once in every process that reads."""
        if self._worker_init_fn is None or self._initialised_in == os.getpid():
            return
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        self._worker_init_fn(worker.id if worker is not None else 0)
        self._initialised_in = os.getpid()

    def items(self, epoch: int) -> Iterator[Any]:
        """Items of an iterable dataset, read with the global states seeded for each."""
        from pipeline.global_random import global_states

        self.initialise()
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        iterator = None
        for number in count():
            with global_states(self._global_seed(epoch, number)):
                iterator = iter(self.dataset) if iterator is None else iterator
                item = next(iterator, _END)
            if item is _END:
                return
            yield item

    def _global_seed(self, epoch: int, position: int) -> int:
        draws = KeyedRng().at(self._seed, epoch, position, Stream.GLOBAL)
        return int(draws.integers(1 << 63))

    def sample(
        self, read: Callable[[], Any], *, index: int, position: int, epoch: int
    ) -> Sample | BadSample:
        """The sample that an item becomes; foreign code finds the global states seeded.

        A ``None`` item, and a ValueError or OSError while reading it, is a bad sample.
        """
        from pipeline.global_random import global_states

        key = str(index)
        with global_states(self._global_seed(epoch, position)):
            try:
                item = read()
            except (ValueError, OSError) as error:
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                return BadSample(index, key, position, cause, self.name)
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
        """A sample of a mapping, a tuple, or one value."""
        if isinstance(item, Mapping):
            return {str(name): _plain(value, str(name)) for name, value in item.items()}
        parts = item if isinstance(item, (tuple, list)) else (item,)
        if len(parts) > len(self._keys):
            raise ValueError(
                f"{self.name}: an item has {len(parts)} parts and dataset.keys names "
                f"{len(self._keys)}: {', '.join(self._keys)}; name them all"
            )
        names = self._keys[: len(parts)]
        return {name: _plain(part, name) for name, part in zip(names, parts, strict=True)}

    def collate(self, samples: list[Sample]) -> Batch:
        """The user's collate_fn on raw items, its output as a dict."""
        import torch

        assert self.collate_fn is not None
        out = self.collate_fn([sample[_ITEM] for sample in samples])
        if isinstance(out, Mapping):
            batch = {str(name): value for name, value in out.items()}
        else:
            parts = list(out) if isinstance(out, (tuple, list)) else [out]
            if len(parts) > len(self._keys):
                raise ValueError(
                    f"{self.name}: collate_fn gives {len(parts)} parts and dataset.keys names "
                    f"{len(self._keys)}: {', '.join(self._keys)}; name them all"
                )
            batch = dict(zip(self._keys, parts, strict=False))
        for name, value in batch.items():
            if isinstance(value, np.ndarray):
                batch[name] = torch.from_numpy(value)
        batch["index"] = torch.tensor([sample["index"] for sample in samples])
        batch["position"] = torch.tensor([sample["position"] for sample in samples])
        batch["key"] = [sample["key"] for sample in samples]
        return batch


def _plain(value: Any, name: str) -> Any:
    """A value as samples hold it: arrays and numbers.

    PIL images become arrays, an ``image`` in RGB. Tensors become arrays of their own layout
    and dtype: a float image [C, H, W] stays one.
    """
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
    """Augmentation steps take any array for [H, W, C], also one that is [C, H, W].

    Raises:
        ValueError: The image is none that they can change rightly.
    """
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
    return transform is not None and bool(getattr(transform, "steps", True))

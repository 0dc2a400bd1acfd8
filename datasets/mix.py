"""Mix several data sets; each keeps its storage, decoding, annotations and cache."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from penstock.core.contracts import Allocate, Dataset, DirectSampler, Index, Sampler, StreamDataset
from penstock.core.registry import register
from penstock.core.sample import BadSample, Sample

Int64Array = NDArray[np.int64]

SOURCE = "source"
"""The column and field with the number of a record's source."""


@register("settings", "source")
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """A source of a mix.

    Args:
        dataset: Any data set except a stream or another mix.
        sampler: The order in which its records are drawn; null: random.
        weight: How often it is drawn, relative to the others; 0: never.
    """

    dataset: dict[str, Any]
    sampler: dict[str, Any] | None = None
    weight: Annotated[float, Ge(0), Lt(inf)] = 1.0


@register("dataset", "mix")
class MixDataset(Dataset):
    """Mix several data sets, each drawn by its weight.

    A sample has ``source``, the number of its dataset, and united class ids, see `MixIndex`.

    Args:
        sources: `SourceSettings` by name; a null source is dropped. Evaluation reads every source
            once, in order, whatever the weights.
        length: Positions in an epoch; null: the sum over the samplers of the drawn sources.
        transform: Unused: the sources have the augmentation.
        seed: Unused.
        split: Unused.
    """

    index: MixIndex

    def __init__(
        self,
        sources: dict[str, Any],
        *,
        length: Annotated[int, Ge(1)] | None = None,
        transform: Any = None,
        seed: int = 0,
        split: str = "train",
    ) -> None:
        if not sources:
            raise ValueError("dataset mix: no source is given; type dataset.sources.NAME.dataset=")
        for name, source in sources.items():
            check_source(name, source)
        self.sources = sources
        self.index = MixIndex({name: source.index for name, source in sources.items()})
        self._firsts = self.index.firsts.tolist()
        self._hold(tuple(sources.values()))

    def _hold(self, sources: tuple[Dataset, ...]) -> None:
        self._by_number = sources
        self.columnar = all(source.columnar for source in sources)
        self.draws_partners = any(source.draws_partners for source in sources)
        self.global_random = any(source.global_random for source in sources)

    def __len__(self) -> int:
        return len(self.index)

    def fetch(self, indices: Int64Array, positions: Int64Array, epoch: int) -> list[Any]:
        samples: list[Any] = [None] * len(indices)
        for number, rows, own in self.index.by_source(indices):
            found = self._by_number[number].fetch(own, positions[rows], epoch)
            for row, sample in zip(rows.tolist(), found, strict=True):
                samples[row] = self._of_mix(sample, number)
        return samples

    def drawing_from(self, sampler: Sampler) -> MixDataset:
        bound = copy.copy(self)
        numbered = enumerate(self._by_number)
        bound._hold(tuple(s.drawing_from(SourceDraws(sampler, n, len(s))) for n, s in numbered))
        return bound

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        parts = []
        for number, rows, own in self.index.by_source(indices):
            columns = self._by_number[number].fetch_columns(own, positions[rows], epoch)
            if columns is None or columns.keys() & {SOURCE, *self.index.class_ids[number]}:
                return None
            columns |= {"index": self._firsts[number] + own, SOURCE: np.full(own.size, number)}
            parts.append((rows, columns))
        return joined(parts)

    def _of_mix(self, sample: Sample | BadSample, number: int) -> Sample | BadSample:
        first, name = self._firsts[number], self.index.names[number]
        if isinstance(sample, BadSample):
            cause = with_keys_of_source(sample.cause, name)
            return replace(sample, index=first + sample.index, cause=cause)
        if SOURCE in sample:
            remedy = _by_keys(name, "source:origin")
            raise ValueError(f"dataset mix: samples of {name!r} have a field 'source'; {remedy}")
        mixed = {**sample, "index": first + sample["index"], SOURCE: number}
        for field, ids in self.index.class_ids[number].items():
            if field in sample and ids is None:
                remedy = f"name them, or {_by_keys(name, f'{field}:null')}"
                said = "has class ids without names, and another source has names"
                raise ValueError(f"dataset mix: {field!r} of {name!r} {said}; {remedy}")
            if field in sample and not _is_by_class(sample[field]):
                mixed[field] = united(sample[field], ids)
        for field, (places, count) in self.index.places[number].items():
            if field in sample and _is_by_class(values := sample[field]):
                if values.ndim > 1:  # keypoints
                    remedy = _by_keys(name, f"{field}:null")
                    said = "has other names than another source, expected the same"
                    raise ValueError(f"dataset mix: {field!r} of {name!r} {said}; {remedy}")
                mixed[field] = np.full(count, np.nan, values.dtype)
                mixed[field][places] = values
        return mixed

    def fingerprint(self) -> str:
        return _hashed(self.sources.items())


@dataclass(frozen=True)
class SourceDraws(DirectSampler):
    """A sampler restricted to one source of a mix, with `size` records."""

    sampler: Sampler
    number: int
    size: int

    def __len__(self) -> int:
        return len(self.sampler)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        found = self.sampler.of_source(self.number, epoch, positions)
        return positions % self.size if found is None else found  # any records of it suffice


class MixIndex(Index):
    """Concatenated indexes: record i of a source is record ``firsts[source] + i``.

    Classes are united by name: the classes of the first source, then the new classes of the next
    ones, in order. Columns are the columns that all sources share, and ``source``.

    `class_ids` has, for each source and field with changed ids, the new id of each class, int64
    [C], or None if the ids lack names that another source has. `places` has, for fields with other
    classes than the mix, the new ids and the number of classes of the mix.
    """

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self.names = tuple(indexes)
        self.firsts = np.cumsum([0, *map(len, indexes.values())])
        self._indexes = tuple(indexes.values())
        classes = [_classes(index) for index in self._indexes]
        united: dict[str, tuple[str, ...]] = {}
        for field in sorted({name for known in classes for name in known}):
            united[field] = tuple(dict.fromkeys(n for c in classes for n in c.get(field, ())))
        self.class_ids: list[dict[str, Int64Array | None]] = []
        self.places: list[dict[str, tuple[Int64Array, int]]] = []
        for known in classes:
            ids = {f: _ids(names, united[f]) for f, names in known.items() if names != united[f]}
            self.places.append({f: (new, len(united[f])) for f, new in ids.items()})
            changed = {f: new for f, new in ids.items() if (new != np.arange(len(new))).any()}
            self.class_ids.append(changed | dict.fromkeys(united.keys() - known.keys()))
        self.class_names = united.pop("label", None)
        self.field_classes = {**united, SOURCE: self.names}

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        first, *rest = (index.columns for index in self._indexes)
        common = (name for name in first if all(name in columns for columns in rest))
        return (*(name for name in common if name != SOURCE), SOURCE)

    def column(self, name: str) -> NDArray[Any]:
        if name not in self.columns:
            return super().column(name)
        if name == SOURCE:
            return np.repeat(np.arange(len(self.names)), np.diff(self.firsts))
        parts = zip(self._indexes, self.class_ids, strict=True)
        return np.concatenate([united(i.column(name), ids.get(name)) for i, ids in parts])

    def keys(self, indices: Int64Array) -> list[str]:
        keys = [""] * len(indices)
        for number, rows, own in self.by_source(indices):
            for row, key in zip(rows.tolist(), self._indexes[number].keys(own), strict=True):
                keys[row] = key
        return keys

    def by_source(self, indices: Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Yield each source's number, int64 [m] rows of `indices`, and int64 [m] own records."""
        sources = np.searchsorted(self.firsts[1:], indices, side="right")
        for number in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == number)
            yield number, rows, indices[rows] - self.firsts[number]

    def fingerprint(self) -> str:
        return _hashed(zip(self.names, self._indexes, strict=True))


def _hashed(sources: Iterable[tuple[str, Dataset | Index]]) -> str:
    prints = [(name, source.fingerprint()) for name, source in sources]
    return hashlib.blake2b(repr(prints).encode(), digest_size=16).hexdigest()


def united(values: Any, ids: Int64Array | None) -> Any:
    """Map class ids of a source to `ids`, int64 [C], of the mix; keep other values."""
    if ids is None:
        return values
    array = np.asarray(values)
    known = (array >= 0) & (array < len(ids))
    found = np.where(known, ids[np.where(known, array, 0)], array)
    if not array.ndim:
        return int(found)
    fits = ids.max() <= np.iinfo(array.dtype).max
    return found.astype(array.dtype) if fits else found


def _is_by_class(values: Any) -> bool:
    """Return whether a field has a number for each class, such as multi-hot labels."""
    return isinstance(values, np.ndarray) and values.dtype.kind == "f"


def _classes(index: Index) -> dict[str, tuple[str, ...]]:
    named = {"label": index.class_names, **index.field_classes}
    return {field: tuple(names) for field, names in named.items() if names}


def _ids(names: Sequence[str], all_names: Sequence[str]) -> Int64Array:
    """Return the position of each name in `all_names`, int64 [len(names)]."""
    places = {name: place for place, name in enumerate(all_names)}
    return np.array([places[name] for name in names], np.int64)


def joined(parts: Sequence[tuple[Int64Array, dict[str, Any]]]) -> dict[str, Any] | None:
    """Join columns of a batch, each part with its rows; None if fields, shapes or types differ."""
    forms = [
        {name: (getattr(v, "dtype", None), getattr(v, "shape", ())[1:]) for name, v in part.items()}
        for _, part in parts
    ]
    if any(form != forms[0] for form in forms):
        return None
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    whole: dict[str, Any] = {}
    for name, first in parts[0][1].items():
        values = [columns[name] for _, columns in parts]
        if isinstance(first, np.ndarray):
            whole[name] = np.concatenate(values)[order]
        else:
            texts = [*chain.from_iterable(values)]
            whole[name] = [texts[row] for row in order.tolist()]
    return whole


def check_source(name: str, source: Any) -> None:
    """Raise ValueError if a source cannot be mixed."""
    why = None
    if isinstance(source, StreamDataset):
        why = "is a stream, expected records by index, such as dataset=webdataset for shards"
    elif source.table is not None:
        why = "decodes a table by statistics of its own; put the rows of all sources into one table"
    if why is not None:
        raise ValueError(f"dataset mix: dataset.sources.{name}.dataset {why}")


def _by_keys(name: str, change: str) -> str:
    typed = f"dataset.sources.{name}.dataset.keys={{{change}}}"
    return f"type {typed}, or for a Dataset in code change its items"


def with_keys_of_source(text: str, name: str) -> str:
    """Rewrite the config keys of a data set's message to its keys in a mix."""
    at = f"dataset.sources.{name}"
    text = re.sub(r"(?<![\w./-])dataset/(?=\w+=)", f"{at}.dataset.", text)
    return re.sub(r"(?<![\w./-])(dataset|sampler)(?=\.(?!sources\.)\w|=)", rf"{at}.\1", text)

"""Mix several data sets; each keeps its storage, decoding, annotations and cache."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from penstock.core.contracts import Dataset, DirectSampler, Index, Sampler, StreamDataset
from penstock.core.registry import register
from penstock.core.sample import BadSample, Keys, Sample
from penstock.core.stage_times import CountedRecords, StageTimes

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
def open_mix(
    *,
    sources: dict[str, Any],
    length: Annotated[int, Ge(1)] | None = None,
    transform: Any = None,
    seed: int = 0,
    split: str = "train",
) -> MixDataset:
    """Mix several data sets, each drawn by its weight.

    Args:
        sources: `SourceSettings` by name; a null source is dropped. Evaluation reads every source
            once, in order, whatever the weights.
        length: Positions in an epoch; null: the sum over the samplers of the drawn sources.
        transform: Unused: the sources have the augmentation.
        seed: Unused.
        split: Unused.

    Raises:
        ValueError: A source cannot be mixed; the message says why.
    """
    return MixDataset(sources)


class MixDataset(Dataset):
    """The concatenated records of several datasets, in the order of `sources`.

    A sample also has ``source``, the number of its dataset. Its ``index`` counts over all
    datasets, and its class ids refer to the united classes, see `MixIndex`.
    """

    index: MixIndex
    staged = True

    def __init__(self, sources: Mapping[str, Dataset]) -> None:
        if not sources:
            raise ValueError(
                "dataset mix: no source is given; type dataset.sources.<name>.dataset=..."
            )
        for name, source in sources.items():
            check_source(name, source)
        self.sources = dict(sources)
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

    def fetch(
        self, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> list[Sample | BadSample]:
        """Make the samples of `indices`, int64 [n], drawn at `positions`, int64 [n]."""
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    def drawing_from(self, sampler: Sampler) -> MixDataset:
        """Return a copy bound to a sampler; partners come from a sample's own source."""
        bound = copy.copy(self)
        bound._hold(
            tuple(
                source.drawing_from(SourceDraws(sampler, number, len(source)))
                if source.draws_partners
                else source
                for number, source in enumerate(self._by_number)
            )
        )
        return bound

    @property
    def row_shape(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        """Return the shape of the images if all sources agree, otherwise None."""
        shapes = {source.row_shape if source.staged else None for source in self._by_number}
        return shapes.pop() if len(shapes) == 1 else None

    def read(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
    ) -> Sequence[Any]:
        """Read the records `indices`, int64 [n], with one read per source."""
        held: list[Any] = [None] * len(indices)
        read = []
        for number, rows, own in self.index.by_source(indices):
            source = self._by_number[number]
            records: Sequence[Any] = own.tolist()
            if source.staged:
                records = source.read(own, positions[rows], epoch)
            read.append(records)
            for row, record in zip(rows.tolist(), records, strict=True):
                held[row] = Held(number, record)
        return CountedRecords.of(held, read)

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the memory that `read` takes for each of `indices`, int64 [n]; 0 if unknown."""
        sizes = np.zeros(len(indices), np.int64)
        for number, rows, own in self.index.by_source(indices):
            known = self._by_number[number].held_bytes
            found = known(own) if known is not None else None
            if found is not None:
                sizes[rows] = found
        return sizes

    def finish(
        self,
        records: Sequence[Held],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Make samples from the result of `read`; see `core.contracts.Dataset`."""
        samples: list[Sample | BadSample] = []
        for run in _runs(records):
            number = records[run.start].source
            source, content = self._by_number[number], [held.record for held in records[run]]
            if source.staged:
                into = None if rows is None else rows[run]
                found = source.finish(content, positions[run], epoch, rows=into, times=times)
            else:
                own = np.array(content, np.int64)
                found = source.fetch(own, positions[run], epoch)
            samples += [self._of_mix(sample, number) for sample in found]
        return samples

    def fetch_columns(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """Take a batch, in one take per field and source; see `core.contracts.Dataset`."""
        parts = []
        for number, rows, own in self.index.by_source(indices):
            memory = allocate if rows.size == indices.size else None
            columns = self._by_number[number].fetch_columns(
                own, positions[rows], epoch, allocate=memory
            )
            columns = columns and in_the_mix(columns, self.index.class_ids[number])
            if columns is None:
                return None
            columns |= {"index": self._firsts[number] + own, SOURCE: np.full(own.size, number)}
            parts.append(Part(rows, columns))
        return parts[0].columns if len(parts) == 1 else joined(parts, allocate=allocate)

    def _of_mix(self, sample: Sample | BadSample, number: int) -> Sample | BadSample:
        first, name = self._firsts[number], self.index.names[number]
        if isinstance(sample, BadSample):
            cause = with_keys_of_source(sample.cause, name)
            return replace(sample, index=first + sample.index, cause=cause)
        if SOURCE in sample:
            raise ValueError(
                f"dataset mix: samples of {name!r} have a field 'source', which the mix sets; "
                f"rename it: dataset.sources.{name}.dataset.keys={{source:origin}}"
            )
        mixed = {**sample, "index": first + sample["index"], SOURCE: number}
        for field, ids in self.index.class_ids[number].items():
            if field not in sample:
                continue
            if ids is None:
                raise ValueError(
                    f"dataset mix: {field!r} of {name!r} has class ids without names, and another "
                    f"source has names for them, by which classes are united; type "
                    f"dataset.sources.{name}.dataset.annotations=in_records where pack kept them, "
                    f"or drop them: dataset.sources.{name}.dataset.keys={{{field}:null}}"
                )
            if not _is_by_class(sample[field]):
                mixed[field] = united(sample[field], ids)
        for field, (places, count) in self.index.places[number].items():
            if field in sample and _is_by_class(sample[field]):
                mixed[field] = spread(sample[field], places, count)
        return mixed

    def fingerprint(self) -> str:
        """Hash the sources' names, data and order."""
        prints = [(name, source.fingerprint()) for name, source in self.sources.items()]
        return hashlib.blake2b(repr(prints).encode(), digest_size=16).hexdigest()


class Held(NamedTuple):
    """A record that a source read, or its index if the source reads only in `fetch`."""

    source: int
    record: Any


def _runs(records: Sequence[Held]) -> Iterator[slice]:
    """Yield slices of adjacent records of one source."""
    sources = [held.source for held in records]
    cuts = [i for i in range(1, len(sources)) if sources[i] != sources[i - 1]]
    for start, stop in pairwise([0, *cuts, len(sources)]):
        if start < stop:
            yield slice(start, stop)


@dataclass(frozen=True)
class SourceDraws(DirectSampler):
    """A sampler restricted to one source of a mix, with `size` records."""

    sampler: Sampler
    number: int
    size: int

    def __len__(self) -> int:
        return len(self.sampler)

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records at any positions, int64 [n]."""
        found = self.sampler.of_source(self.number, epoch, positions)
        return positions % self.size if found is None else found  # any records of it suffice


class MixIndex(Index):
    """Concatenated indexes: record i of a source is record ``firsts[source] + i``.

    Classes are united by name: the classes of the first source, then the new classes of the next
    ones, in order. Columns are the columns that all sources share, and ``source``.

    Attributes:
        names: The names of the sources, by number.
        firsts: The first record of each source, then the total, int64 [S + 1].
        field_classes: Class names by field; for ``source``, the names of the sources.
        class_ids: For each source, by field with changed ids: the new id of each class, int64
            [C]; None: the ids lack names that another source has.
        places: For each source, by field with fewer classes than the mix: the new ids, and the
            number of classes of the mix.
    """

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self.names = tuple(indexes)
        self.firsts = np.cumsum([0, *map(len, indexes.values())])
        self._indexes = tuple(indexes.values())
        classes = [_classes(index) for index in self._indexes]
        united: dict[str, tuple[str, ...]] = {}
        for field in sorted({name for known in classes for name in known}):
            united[field] = tuple(dict.fromkeys(n for c in classes for n in c.get(field, ())))
        self.class_ids = tuple(
            {f: _ids(known[f], names) if f in known else None for f, names in united.items()
             if f not in known or names[: len(known[f])] != known[f]}
            for known in classes
        )  # fmt: skip
        self.places = tuple(
            {f: (_ids(known[f], names), len(names)) for f, names in united.items()
             if known.get(f, names) != names}
            for known in classes
        )  # fmt: skip
        self.class_names = united.pop("label", None)
        self.field_classes = {**united, SOURCE: self.names}
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the columns that all sources have."""
        first, *rest = (index.columns for index in self._indexes)
        common = (name for name in first if all(name in columns for columns in rest))
        return (*(name for name in common if name != SOURCE), SOURCE)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, [len(self)]; a KeyError lists the columns."""
        if name not in self._columns:
            if name not in self.columns:
                known = ", ".join(self.columns)
                raise KeyError(f"index of a mix: no column {name!r}; of all sources: {known}")
            if name == SOURCE:
                column = np.repeat(np.arange(len(self.names)), np.diff(self.firsts))
            else:
                parts = zip(self._indexes, self.class_ids, strict=True)
                column = np.concatenate([united(i.column(name), ids.get(name)) for i, ids in parts])
            self._columns[name] = column
        return self._columns[name]

    def keys(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the sources' keys of `indices`, int64 [n]."""
        keys = np.empty(len(indices), object)
        for number, rows, own in self.by_source(indices):
            keys[rows] = self._indexes[number].keys(own)
        found: list[str] = keys.tolist()
        return found

    def by_source(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each source's number, int64 [m] rows of `indices`, and int64 [m] own records."""
        sources = np.searchsorted(self.firsts[1:], indices, side="right")
        for number in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == number)
            yield number, rows, indices[rows] - self.firsts[number]

    def fingerprint(self) -> str:
        """Hash the sources' names and data, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for name, index in zip(self.names, self._indexes, strict=True):
            digest.update(f"{name}\0{index.fingerprint()}\0".encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}}  # rebuilt on demand


def united(values: Any, ids: NDArray[np.int64] | None) -> Any:
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


def spread(
    values: NDArray[np.floating[Any]], places: NDArray[np.int64], count: int
) -> NDArray[np.floating[Any]]:
    """Spread a number for each class, [C], over the `count` classes of the mix; NaN elsewhere."""
    found = np.full(count, np.nan, values.dtype)
    found[places] = values
    return found


def _classes(index: Index) -> dict[str, tuple[str, ...]]:
    named = {"label": index.class_names, **index.field_classes}
    return {field: tuple(names) for field, names in named.items() if names}


def _ids(names: Sequence[str], all_names: Sequence[str]) -> NDArray[np.int64]:
    """Return the position of each name in `all_names`, int64 [len(names)]."""
    places = {name: place for place, name in enumerate(all_names)}
    return np.array([places[name] for name in names], np.int64)


class Part(NamedTuple):
    """Columns of one source in a batch, and their rows, int64 [m]."""

    rows: NDArray[np.int64]
    columns: dict[str, Any]


def in_the_mix(
    columns: dict[str, Any], class_ids: Mapping[str, NDArray[np.int64] | None]
) -> dict[str, Any] | None:
    """Convert class ids of a source's columns; None if a single sample has to report an error."""
    changed = {field: ids for field, ids in class_ids.items() if field in columns}
    arrays = [columns[field] for field in changed]
    numbers = all(isinstance(each, np.ndarray) and not _is_by_class(each) for each in arrays)
    if SOURCE in columns or not numbers or any(ids is None for ids in changed.values()):
        return None
    return {**columns, **{field: united(columns[field], ids) for field, ids in changed.items()}}


def joined(
    parts: Sequence[Part], *, allocate: Callable[[int], Any] | None = None
) -> dict[str, Any] | None:
    """Join the columns of a batch; return None if their fields, shapes or types differ."""
    fields = next(part.columns for part in parts if 0 in part.rows)
    if any(part.columns.keys() != fields.keys() for part in parts):
        return None
    count = sum(part.rows.size for part in parts)
    whole: dict[str, Any] = {}
    for name in fields:
        values = [part.columns[name] for part in parts]
        if all(isinstance(each, list | Keys) for each in values):
            whole[name] = [None] * count
            continue
        dtype = _common_type(values)
        if dtype is None:
            return None
        whole[name] = np.empty((count, *values[0].shape[1:]), dtype)
    largest = max(
        (name for name, each in whole.items() if isinstance(each, np.ndarray) and each.ndim > 1),
        key=lambda name: whole[name].nbytes,
        default=None,
    )
    if allocate is not None and largest is not None:
        like = whole[largest]
        whole[largest] = np.frombuffer(allocate(like.nbytes), like.dtype, like.size).reshape(
            like.shape
        )
    for part in parts:
        for name, each in part.columns.items():
            if isinstance(whole[name], np.ndarray):
                whole[name][part.rows] = each
                continue
            for row, value in zip(part.rows.tolist(), each, strict=True):
                whole[name][row] = value
    return whole


def _common_type(arrays: Sequence[Any]) -> np.dtype[Any] | None:
    """Return the common type of a column, or None if the arrays differ.

    Arrays with several axes must share a type. Integers alone never become floats.
    """
    if not all(isinstance(each, np.ndarray) for each in arrays):
        return None
    types = {array.dtype for array in arrays}
    if len({array.shape[1:] for array in arrays}) > 1 or (len(types) > 1 and arrays[0].ndim > 1):
        return None
    common = np.result_type(*types) if len(types) > 1 else types.pop()
    return common if len(types) < 2 or common.kind in {t.kind for t in types} else None


def check_source(name: str, source: Any) -> None:
    """Raise ValueError if a source cannot be mixed."""
    key = f"dataset.sources.{name}"
    if isinstance(source, StreamDataset):
        raise ValueError(
            f"dataset mix: {name!r} is a stream, which is read in its own order, and a mix draws "
            f"by index; give {key}.dataset records that can be indexed, such as webdataset for "
            f"shards"
        )
    if source.collate is not None:
        raise ValueError(
            f"dataset mix: {name!r} puts its batches together by a collate_fn of its own, and "
            f"these are of several sources; set {key}.dataset.collate_fn=null, and collate=..."
        )
    if source.table is not None:
        raise ValueError(
            f"dataset mix: {name!r} decodes a table by figures of its own training part, and the "
            f"sources' columns would not be comparable; put the rows into one table"
        )


def with_keys_of_source(text: str, name: str) -> str:
    """Rewrite the config keys of a data set's message to its keys in a mix."""
    at = f"dataset.sources.{name}"
    text = re.sub(r"(?<![\w./-])dataset/(?=\w+=)", f"{at}.dataset.", text)
    return re.sub(r"(?<![\w./-])(dataset|sampler)(?=\.(?!sources\.)\w|=)", rf"{at}.\1", text)

"""Several data sets as one: each keeps its own storage, decoding, annotations and cache."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from datasets.mix_columns import Part, in_the_mix, joined
from datasets.mix_index import SOURCE, MixIndex, united
from datasets.mix_source import check_source, with_keys_of_source
from datasets.protocols import Dataset, Sampler
from datasets.sample import BadSample, Sample
from datasets.source_draws import SourceDraws
from datasets.stage_times import CountedRecords, StageTimes
from datasets.staged import gives_columns, is_staged
from pipeline.registry import register


class Held(NamedTuple):
    """What a source read, and which one it was.

    Attributes:
        source: The source's number.
        record: What its ``read`` gave; the record's own index where it has no such method.
    """

    source: int
    record: Any


class MixDataset:
    """The records of several datasets, one behind the other.

    Samples are those of their dataset, with ``source``, int, the number of it, and ``index``
    counted over all. Class ids become those of the classes united by name, see `MixIndex`.

    Args:
        sources: Datasets by name, in the order in which their records are numbered.

    Attributes:
        index: The metadata of all records.
        global_random: A source draws from global random states and needs a process in which no
            other thread does.
        table: None; a source that has learned from its training part alone is refused.

    Raises:
        ValueError: A source cannot be mixed; the message says why.
    """

    table = None

    def __init__(self, sources: Mapping[str, Dataset]) -> None:
        if not sources:
            raise ValueError(
                "dataset mix: there are no sources; give some: dataset.sources.<name>.dataset=..."
            )
        for name, source in sources.items():
            check_source(name, source)
        self.sources = dict(sources)
        self.index = MixIndex({name: source.index for name, source in sources.items()})
        self.global_random = any(getattr(s, "global_random", False) for s in sources.values())
        self._by_number: tuple[Any, ...] = tuple(sources.values())
        self._staged = tuple(map(is_staged, self._by_number))
        self._firsts = self.index.firsts.tolist()

    def __len__(self) -> int:
        return len(self.index)

    def fetch(
        self, indices: NDArray[np.int64], positions: NDArray[np.int64], epoch: int
    ) -> list[Sample | BadSample]:
        """Samples of the records `indices`, int64 [n], drawn at `positions`, int64 [n]."""
        return self.finish(self.read(indices, positions, epoch), positions, epoch)

    @property
    def needs_partners(self) -> bool:
        """Whether a source's transform needs other samples, and `read` the positions."""
        return any(map(_needs_partners, self._by_number))

    def drawing_from(self, sampler: Sampler) -> MixDataset:
        """The same data, whose transforms get other samples as `sampler` places them.

        Those of a sample are of its own source.
        """
        bound = copy.copy(self)
        bound._by_number = tuple(
            source.drawing_from(SourceDraws(sampler, number, len(source)))
            if _needs_partners(source)
            else source
            for number, source in enumerate(self._by_number)
        )
        return bound

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """The shape of the images where the sources know one and the same; else None."""
        shapes = {getattr(source, "row_shape", None) for source in self._by_number}
        return shapes.pop() if len(shapes) == 1 else None

    def read(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
        epoch: int = 0,
    ) -> Sequence[Any]:
        """What lies at `indices`, int64 [n], in one batched read of each source.

        Where a transform needs other samples, `positions`, int64 [n], and `epoch` say which.
        """
        held: list[Any] = [None] * len(indices)
        counted = []
        for number, rows, own in self.index.by_source(indices):
            source = self._by_number[number]
            records: Sequence[Any]
            if not self._staged[number]:
                records = own.tolist()
            elif _needs_partners(source):
                assert positions is not None, "partners are drawn by position"
                records = source.read(own, positions=positions[rows], epoch=epoch)
            else:
                records = source.read(own)
            if isinstance(records, CountedRecords):
                counted.append(records)
            for row, record in zip(rows.tolist(), records, strict=True):
                held[row] = Held(number, record)
        if not counted:
            return held
        return CountedRecords(
            held,
            hits=sum(each.hits for each in counted),
            misses=sum(each.misses for each in counted),
            damaged=sum(each.damaged for each in counted),
            decode_s=sum(each.decode_s for each in counted),
        )

    def held_bytes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Memory that `read` takes for each of `indices`, int64 [n], as far as it is known."""
        sizes = np.zeros(len(indices), np.int64)
        for number, rows, own in self.index.by_source(indices):
            known = getattr(self._by_number[number], "held_bytes", None)
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
        """Samples of what `read` gave; see `datasets.protocols.StagedDataset`.

        Raises:
            ValueError: A sample has a field ``source``, or class ids without names that others
                have.
        """
        samples: list[Sample | BadSample] = []
        for run in _runs(records):
            number = records[run.start].source
            source, content = self._by_number[number], [held.record for held in records[run]]
            if self._staged[number]:
                into = None if rows is None else rows[run]
                found = source.finish(content, positions[run], epoch, rows=into, times=times)
            else:
                found = source.fetch(np.array(content, np.int64), positions[run], epoch)
            samples += [self._of_mix(sample, number) for sample in found]
        return samples

    @property
    def gives_columns(self) -> bool:
        """Whether batches can be taken as a whole, of every source."""
        return all(map(gives_columns, self._by_number))

    def fetch_columns(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """A batch in one take per field and source; see `datasets.protocols.ColumnDataset`."""
        parts = []
        for number, rows, own in self.index.by_source(indices):
            memory = allocate if rows.size == indices.size else None
            source = self._by_number[number]
            columns = source.fetch_columns(own, positions[rows], epoch, allocate=memory)
            columns = columns and in_the_mix(columns, self.index.class_ids[number])
            if columns is None:
                return None
            columns |= {"index": self._firsts[number] + own, SOURCE: np.full(own.size, number)}
            parts.append(Part(rows, columns))
        return parts[0].columns if len(parts) == 1 else joined(parts, allocate=allocate)

    def _of_mix(self, sample: Sample | BadSample, number: int) -> Sample | BadSample:
        """A source's sample as one of the mix."""
        first, name = self._firsts[number], self.index.names[number]
        if isinstance(sample, BadSample):
            cause = with_keys_of_source(sample.cause, name)
            return replace(sample, index=first + sample.index, cause=cause)
        if SOURCE in sample:
            raise ValueError(
                f"dataset mix: samples of {name!r} have a field 'source', which is the mix's own; "
                f"rename it: dataset.sources.{name}.dataset.keys={{source: origin}}"
            )
        mixed = {**sample, "index": first + sample["index"], SOURCE: number}
        for field, ids in self.index.class_ids[number].items():
            if field not in sample:
                continue
            if ids is None:
                raise ValueError(
                    f"dataset mix: {field!r} of {name!r} has class ids without names, and another "
                    f"source has names for them, by which classes are united; name them where "
                    f"{name!r} is read, or drop them: "
                    f"dataset.sources.{name}.dataset.keys={{{field}: null}}"
                )
            mixed[field] = united(sample[field], ids)
        return mixed

    def fingerprint(self) -> str:
        """Hash of the sources' names, data and order."""
        prints = [(name, source.fingerprint()) for name, source in self.sources.items()]
        return hashlib.blake2b(repr(prints).encode(), digest_size=16).hexdigest()


@register("settings", "source")
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """A source of a mix.

    Args:
        dataset: Any data set but a stream or another mix.
        sampler: The order in which its records are drawn; null: random.
        weight: How often it is drawn beside the others, of any scale; 0: never.
    """

    dataset: dict[str, Any]
    sampler: dict[str, Any] | None = None
    weight: Annotated[float, Ge(0)] = 1.0


@register("dataset", "mix")
def open_mix(
    *,
    sources: dict[str, Any],
    length: Annotated[int, Ge(1)] | None = None,
    transform: Any = None,
    seed: int = 0,
    split: str = "train",
) -> MixDataset:
    """Several data sets at once, each drawn by its weight.

    Args:
        sources: By name, see `SourceSettings`; one that is null is left out. Evaluation takes all
            of each once, in order, whatever the weights.
        length: Positions in an epoch; null: as many as the samplers of the sources that are drawn
            have together.
        transform: The augmentation, not used: the sources have it.
        seed: The run's seed, not used either.
        split: ``train`` or ``val``, not used either.

    Raises:
        ValueError: A source cannot be mixed; the message says why.
    """
    return MixDataset(sources)


def _needs_partners(source: Any) -> bool:
    return bool(getattr(source, "needs_partners", False))


def _runs(records: Sequence[Held]) -> Iterator[slice]:
    """Neighbours of one source, whose rows in the batch are neighbours too."""
    sources = [held.source for held in records]
    cuts = [i for i in range(1, len(sources)) if sources[i] != sources[i - 1]]
    for start, stop in pairwise([0, *cuts, len(sources)]):
        if start < stop:
            yield slice(start, stop)

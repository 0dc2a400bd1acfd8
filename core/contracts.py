"""The contracts between the stages, in the order in which data flows.

    storage -> decoder -> transform -> dataset -> sampler -> collate -> model and task

Extend a base class and override its defaults. Objects that cross to another process pickle as their
constructor arguments, and open their handles on first use there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from penstock.core.sample import (
    MAX_RECORD_BYTES,
    BadRecord,
    BadSample,
    Batch,
    Keys,
    Record,
    Sample,
)
from penstock.core.stage_times import StageTimes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from penstock.core.parts import PackPlan, Part, PartSummary

    Array = NDArray[Any]
    Int64Array = NDArray[np.int64]
    Rng = np.random.Generator

Allocate = Callable[[int], Any]
"""Returns writable memory of the given size in bytes, where a batch will be delivered."""
Sizes = Callable[["Int64Array"], "Array | None"]
"""Returns the size of each record in memory after reading, integers [n], or None if unknown."""


def abilities_of(part: Any, kind: type[Any]) -> Any:
    """Return a component that extends `kind`, or for a plain function `kind` with its defaults."""
    return part if isinstance(part, kind) else kind


# Storage: records by index.


class Index(ABC):
    """Metadata of every record, known without reading the records."""

    columns: tuple[str, ...] = ()  # ``label``, ``size_bytes``, ``height``, ...
    class_names: tuple[str, ...] | None = None  # class names by label, or None without labels
    # Class names by annotated field, such as ``box_labels`` or ``mask``.
    field_classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def keys(self, indices: Int64Array) -> list[str]:
        """Return the keys at `indices`, int64 [n]."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of keys, sizes and labels, without paths and times."""

    def column(self, name: str) -> Array:
        """Return one column as an array [len(self)]; a KeyError names the existing columns."""
        known = ", ".join(self.columns) or "none"
        raise KeyError(f"index: no column {name!r}; columns: {known}")

    def values(self, name: str, indices: Int64Array) -> Array:
        """Return the values of one column at `indices`, [n]."""
        return self.column(name)[indices]

    def key_column(self, indices: Int64Array) -> list[str] | Keys:
        """Return the keys at `indices`, int64 [n]; `Keys` makes the strings on first use."""
        return self.keys(indices)

    def raw_keys(self, indices: Int64Array) -> list[bytes]:
        """Return the keys at `indices`, int64 [n], as the bytes stored in the data."""
        return [key.encode("utf-8", "surrogateescape") for key in self.keys(indices)]


class Storage(ABC):
    """Random access to the records of a data set."""

    index: Index  # metadata of the records
    # The fields of every record, in order, if `take` reads them as columns.
    column_fields: tuple[str, ...] = ()
    # Fields of integers or times that are floats because of nulls.
    nullable: Collection[str] = ()
    # The class reads URLs; for other classes the files are copied first.
    reads_urls: ClassVar[bool] = False
    # Records come from a URL whose changes the index notices, so they may be cached.
    is_remote: bool = False
    max_record_bytes: int = MAX_RECORD_BYTES  # the maximum size of a record; larger records are bad

    def __len__(self) -> int:
        return len(self.index)

    @abstractmethod
    def read(self, indices: Int64Array) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], in that order; a `BadRecord` for damage.

        Retry temporary failures, then raise them.
        """

    def fingerprint(self) -> str:
        """Return a hash of the data's content; equal for a copy at another path."""
        return self.index.fingerprint()

    def take(
        self,
        indices: Int64Array,
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        """Read the given fields of the records at `indices`, int64 [n], as new arrays [n, ...].

        Row i equals ``read(indices)[i]``: bools, integers, or floats with NaN for nulls; texts
        are a `TextColumn`. The largest array uses the memory of `allocate`. Return None for empty
        `indices`, bad records, and fields that are not columns.
        """
        return None

    def held_bytes(self, indices: Int64Array) -> Array | None:
        """Return the memory of each record after reading, integers [n], or None if unknown."""
        return None

    def shards(self) -> Int64Array:
        """Return the first record of each file or group to read as a whole, int64 [s], from 0."""
        import numpy as np

        return np.zeros(1, np.int64)

    def state(self) -> Any:
        """Return plain values that change with any field of a record, or None if unknown."""
        return None


class Writer(ABC):
    """Writes records in the format of the storage with the same name.

    `pack` writes several parts at a time, in any process, into a hidden folder, and rewrites a part
    whose process was killed. Equal records and arguments give equal bytes. Raise a one-line
    ValueError for records that the format cannot hold, in `begin` if the plan's samples show it.
    docs/architecture.md has an example.
    """

    version: int = 1  # version of the format; `pack` resumes only parts of the same version
    part_records: int = 10_000  # the maximum number of records in a part
    # The maximum bytes of a part, by ``size_bytes`` of the source's index, or else by some records.
    part_bytes: int = 1 << 28
    # The kinds of fields that the format refuses, by the names in tests/contracts/records.py.
    cannot_hold: frozenset[str] = frozenset()

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Prepare the folder; called at every start, when finished parts may exist."""

    @abstractmethod
    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        """Write the readable records of `part`, in any process; return the names of its files."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write the files that all parts share; called again after a kill."""


# Annotations: label files that add fields to records.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsToLabel:
    """The records to annotate."""

    storage: Storage  # the storage of the records
    keys: Sequence[str]  # the keys of the records, [n]
    root: str  # the folder or file of the whole data set
    place: str  # the folder or file of these records; may equal `root`
    part: str  # ``train``, ``val`` or ``test``, or an empty string for data without parts
    # Class names by field, fixed by the training part or the run.
    classes: Mapping[str, tuple[str, ...]]


class Annotations(Protocol):
    """Label files next to the data."""

    def of(self, records: RecordsToLabel) -> Sequence[RecordAnnotations]:
        """Read the annotations of a storage's records; raise a one-line ValueError on failure."""


class RecordAnnotations(ABC):
    """The annotations of every record of a storage."""

    # Class names by the field that holds the class ids.
    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    # Additional columns for the index, each [n].
    columns: Mapping[str, Array] = MappingProxyType({})

    def fields(self, indices: Int64Array) -> Sequence[Mapping[str, Any] | str]:
        """Return more fields of the records at `indices`, int64 [n]; a string for a bad record."""
        return [{} for _ in indices]

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of all annotations."""

    def state(self) -> Any:
        """Return plain values that change with the files that `fields` reads; None without any."""
        return None


# Source: the shards of a stream.


class Source(ABC):
    """The shards of a stream, each read in order.

    An item is a `BadRecord` or a small object with a ``key``, equal in all epochs, by whose hash
    items are split. The last item of a damaged shard may be a `BadRecord` with ``ends_shard=True``.
    """

    # A shard can be read again: by another epoch, by another rank, or to resume.
    reopens: bool = True
    # Each `read` continues after the previous one, as with a queue; no item repeats.
    continues: bool = False
    class_names: tuple[str, ...] | None = None  # class names by label, or None
    max_record_bytes: int = MAX_RECORD_BYTES  # the maximum size of a record; larger records are bad

    @abstractmethod
    def shards(self, epoch: int) -> Sequence[Any]:
        """Return the shards of an epoch: hashable values, in the order of the source."""

    @abstractmethod
    def read(self, shard: Any, start: int) -> Generator[Any]:
        """Yield the items of a shard from number `start`; raise failures other than damaged data.

        `start` is 0 unless `count` knows the shard.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the metadata known before reading, without paths and times."""

    def load(self, item: Any) -> Record | BadRecord:
        """Return the record of an item; called in any process."""
        record: Record | BadRecord = item
        return record

    def count(self, shard: Any) -> int | None:
        """Return the number of items of a shard, or None if it is unknown without reading."""
        return None

    def settled(self) -> Mapping[str, Mapping[Any, Any]]:
        """Return arguments with which every rank and every resumed run find the same data."""
        return {}

    def acknowledge(self, records: int) -> None:
        """Release the first `records` of the epoch, in order of position, after a checkpoint."""


# Decoder and transform: record to sample, sample to sample, batch to batch.


class Decoder(ABC):
    """Turns a record into a sample, as a plain function may; raises `RecordError` for damage."""

    unchanged: bool = False  # fields pass unchanged
    # Decodes the columns of `Storage.take` at once, to the sample fields without ``index`` and
    # ``key``, or None if a record is bad.
    columns: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    # Decodes all but the image, which stays pending until a transform draws its crop.
    defer: Callable[[Record], Sample] | None = None
    # Decodes an image to uint8 [H, W, C], which the decoder itself passes through unchanged.
    # Caches of pixels need it.
    whole_image: Callable[[Any], Array] | None = None

    @abstractmethod
    def __call__(self, record: Record) -> Sample: ...


class FittedDecoder(Decoder):
    """A decoder that learns statistics of the training part, such as means and vocabularies."""

    statistics: Any = None  # the learned statistics, with a method ``as_json``; None before `learn`

    @property
    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """The plain values that, with the data, determine the statistics."""

    @abstractmethod
    def fit(self, chunks: Iterable[Mapping[str, Any]], *, where: str) -> dict[str, Any]:
        """Compute the statistics of all rows, as plain values; raise ValueError without rows.

        `chunks` are columns by field, of some rows each. `where` names the data in messages.
        """

    @abstractmethod
    def learn(self, learned: Mapping[str, Any]) -> None:
        """Set the statistics that `fit` returned."""


class Transform(ABC):
    """Changes one sample, as a plain function may, with all randomness from the generator."""

    unchanged: bool = False  # the transform does nothing
    global_random: bool = False  # draws from global random states, so needs its own process
    # Begins with a crop whose draw needs only the image size, so decoders may defer the image
    # and other fields. For a step: the step is such a crop.
    crops_first: bool = False
    # Returns the number of partners for each step that mixes samples; calls then take
    # ``partners``.
    partner_counts: Callable[[Rng], Sequence[int]] | None = None

    @abstractmethod
    def __call__(self, sample: Sample, rng: Rng) -> Sample: ...


@runtime_checkable
class PartnerTransform(Protocol):
    """A step that mixes in other samples of the epoch, decoded but not augmented."""

    def partners(self, rng: Rng) -> int:
        """Return the number of partners for one call; 0 keeps the sample. `rng` is separate."""

    def __call__(self, sample: Sample, rng: Rng, partners: Sequence[Sample]) -> Sample: ...


class BatchTransform(ABC):
    """Changes a whole batch on its device and returns it; a plain function is one too."""

    group: int = 1  # number of positions to keep on one rank

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch: ...


# Dataset: positions to samples.


class AnyDataset(ABC):
    """The common base of indexed data and streams."""

    # Height, width and channels of the images, if known.
    row_shape: tuple[int, int, int] | None = None
    global_random: bool = False  # draws from global random states, so needs its own process
    table: FittedDecoder | None = None  # the fitted decoder of a table

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the data's identity."""


class Dataset(AnyDataset):
    """Reads, decodes and transforms the samples at positions of an epoch."""

    index: Index  # metadata of the records
    # ``fetch`` equals ``finish(read(...))``, and both can be called separately.
    staged: bool = False
    # ``fetch_columns`` can return whole batches, without work for each sample.
    columnar: bool = False
    draws_partners: bool = False  # the transform needs other samples; see ``drawing_from``
    held_bytes: Sizes | None = None  # returns the sizes of records in memory

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Return samples of the records `indices`, int64 [n], by (seed, epoch, position, index)."""

    def read(self, indices: Int64Array, positions: Int64Array, epoch: int) -> Sequence[Any]:
        """Read the records `indices`, int64 [n], for `finish`; called from any thread."""
        raise NotImplementedError

    def finish(
        self,
        records: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Turn the result of `read` into samples at `positions`, int64 [n].

        An image of the shape of `rows`, uint8 [n, *row_shape], may be written to its row. `times`
        accumulates the durations.
        """
        raise NotImplementedError

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        """Return arrays [n, ...], lists or `Keys`, or None; for `allocate` see `Storage.take`."""
        return None

    def drawing_from(self, sampler: Sampler) -> Dataset:
        """Return the same data with the partners that `sampler` places in an epoch."""
        return self


class StreamDataset(AnyDataset):
    """Items without random access, read in order and numbered by position."""

    class_names: tuple[str, ...] | None = None  # class names by label, or None
    reopens: bool = True  # the stream can be opened again, and by several ranks
    # Number of parts that can be read in parallel. If above 1, `open` takes ``reader``, the
    # number of the part.
    readers: int = 1
    # The user's code reads the stream, in worker processes if there are any.
    foreign_reader: bool = False

    @abstractmethod
    def open(self, epoch: int, start: int) -> Iterator[Any]:
        """Return a generator of the epoch's raw items in order, from number `start`."""

    @abstractmethod
    def fetch_items(
        self,
        items: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Turn raw items of `open` into samples; `rows` and `times` as in `Dataset.finish`."""


# Sampler and collate: position to record, samples to a batch.


class Sampler(ABC):
    """Maps positions to records: a pure, stateless, picklable function.

    The loader passes the constructor arguments ``n``, the number of records, ``index``, their
    `Index`, ``seed`` and ``batch_size``, the positions of a batch over all ranks, by name.
    """

    group: int = 1  # number of positions to keep on one rank
    same: tuple[str, ...] = ()  # index columns in which a replacement equals the bad record
    # Arguments that `fingerprint` covers; a resumed run may change their paths.
    by_content: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of positions in an epoch."""

    @abstractmethod
    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Return the record indices at positions `start` to `stop` - 1, int64 [stop - start]."""

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Return the records at any positions of an epoch, int64 [n]."""
        import numpy as np

        cuts = np.flatnonzero(np.diff(positions) != 1) + 1
        runs = [run for run in np.split(positions, cuts) if run.size]
        found = [self.indices(epoch, int(run[0]), int(run[-1]) + 1) for run in runs]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def cuts(self, epoch: int) -> Int64Array | None:
        """Return the bounds of an epoch's batches, int64 [B + 1]; None: all of ``batch_size``."""
        return None

    def fingerprint(self) -> str:
        """Return a hash of external data, such as a file of weights, or an empty string."""
        return ""

    def of_source(self, number: int, epoch: int, positions: Int64Array) -> Int64Array | None:
        """For a mix: return the next record of a source from each position on, int64 [n]."""
        return None


class DirectSampler(Sampler):
    """A sampler that computes any position directly; the loader asks for many batches at once."""

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        import numpy as np

        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    @abstractmethod
    def at(self, epoch: int, positions: Int64Array) -> Int64Array: ...


class Collate(ABC):
    """Merges samples into a batch, as a plain function may; images stay uint8 [B, H, W, C]."""

    global_random: bool = False  # draws from global random states, so needs its own process
    in_place: bool = False  # `into` uses the memory that it is given
    columnar: bool = False  # `columns` is implemented
    # Returns the number of elements in ragged fields, without and with padding.
    overhead: Callable[[Batch], tuple[int, int]] | None = None

    @abstractmethod
    def __call__(self, samples: list[Sample]) -> Batch: ...

    def into(
        self,
        samples: list[Sample],
        *,
        rows: NDArray[np.uint8] | None = None,
        allocate: Allocate | None = None,
    ) -> Batch:
        """Collate samples, in memory of the loader.

        `rows`, uint8 [B, H, W, C], may hold the images already. Else the largest tensor uses the
        memory of `allocate`.
        """
        return self(samples)

    def columns(self, columns: dict[str, Any]) -> Batch:
        """Collate the columns of `Dataset.fetch_columns`."""
        raise NotImplementedError


class FunctionCollate(Collate):
    """A plain function of samples as a collate."""

    def __init__(self, function: Callable[[list[Sample]], Batch]) -> None:
        self.function = function

    def __call__(self, samples: list[Sample]) -> Batch:
        return self.function(samples)


# Training: the consumers of batches.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """Facts about a model, derived from its arguments before it is built.

    The function registered as ``capabilities`` returns them, or raises ValueError.
    """

    # Channel means that the weights expect, for values 0..1; None: any.
    mean: Sequence[float] | None = None
    # Channel standard deviations that the weights expect; None: any.
    std: Sequence[float] | None = None
    # Arguments that choose initial weights, mapped to values for random weights. A model that
    # loads a checkpoint is built with these values. ``weights`` is a path.
    begins_with: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """Computes losses and metrics of outputs and batch, over its valid rows."""

    def losses(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return scalar tensors by name, each a mean over valid rows; training uses their sum."""

    def metrics(self) -> Any:
        """Return new metrics: a ``MetricCollection``, or an object with ``compute`` and ``to``."""

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""


@runtime_checkable
class ClassTask(Protocol):
    """A task with metrics for each class, as ``evaluate`` reports them."""

    num_classes: int
    class_names: tuple[str, ...] | None

    def metrics_by_class(self) -> Any:
        """Return new `metrics` that also compute tensors by class.

        A tensor [C] has a value for each class id, or NaN. An integer tensor [C, C] is a confusion
        matrix with true classes as rows. In [C + 1, C + 1] the last class is the background.
        """


@runtime_checkable
class FittedTask(Protocol):
    """A task that needs statistics of the training part, such as the mean of its target."""

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Compute plain values from the training part's index, None for a stream."""

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Set the statistics that `fit` returned and the run saved."""


@runtime_checkable
class TaskGroup(Protocol):
    """Several tasks by name; their metrics are named ``<task>_<metric>``."""

    tasks: Mapping[str, Task]

    def metrics_by_class(self) -> Any:
        """Return the metrics of every `ClassTask`; tensors are named ``<task>/<metric>``."""


@runtime_checkable
class PredictingTask(Protocol):
    """A task that reports the outputs of its model row by row."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Return columns: tensors [B] or [B, n], or lists of B plain values, lists or bytes.

        Probabilities of all classes are `pipeline.learning.outputs.Probabilities`.
        """


class Logger(ABC):
    """Records the metrics of a run; called only on rank 0."""

    # Writes to a service. The framework calls it in a separate thread, retries failures, and
    # never stops training for them.
    remote: bool = False
    draws: bool = False  # `picture` is implemented

    def begin(self) -> None:
        """Open the run, or continue the checkpoint's run; raise a one-line ValueError."""

    @abstractmethod
    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""

    def picture(self, step: int, name: str, picture: NDArray[np.uint8]) -> None:
        """Log a picture of a step, uint8 [H, W, 3], RGB."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position in the log, for a checkpoint."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Truncate the log to the checkpoint, or skip later values."""

    def failed(self) -> None:
        """Run before `close` if the run ends early."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close."""


class Callback:
    """A hook into training, called on every rank; inherit it and override what you need."""

    # Changes no results, so a resumed run may add or drop the callback.
    watches: ClassVar[bool] = False
    # Arguments that limit the length of a run; higher is longer, None is unlimited.
    limits: ClassVar[tuple[str, ...]] = ()

    def stepped(self, step: int) -> None:
        """Run after an optimizer step, counted from 1, while its gradients exist."""

    def evaluating(self) -> AbstractContextManager[object]:
        """Return a context for validating the model and saving its weights."""
        return nullcontext()

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """Run after an epoch, with its validation metrics if it was validated."""

    def stop(self) -> str | None:
        """Return a reason to end training, or None; called before each epoch and after resume."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the checkpoint state; called on all ranks in `evaluating`, saved for rank 0."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the checkpoint state; the model already has its weights."""

    def close(self) -> None:
        """Flush and close open files."""

"""The contracts between the stages, in the order in which data flows.

    storage -> decoder -> transform -> dataset -> sampler -> collate -> model and task

Objects that cross to another process pickle as their constructor arguments. They open their
handles on first use in the process that uses them, and work under fork, spawn and forkserver.

`Storage`, `Writer`, `Source`, `Dataset`, `StreamDataset` and `Decoder` are base classes: extend
them and override their defaults. Other components declare optional abilities in ``capabilities``,
an attribute or property that holds the frozen class of their group::

    @register("sampler", "pairs")
    class PairSampler:
        capabilities = SamplerCapabilities(group=2)

A component without the attribute follows the contract alone. A component that wraps another one
declares the abilities of the wrapped component. `capabilities_of` reads the declaration once, when
a dataset or a loader is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

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

    from penstock.core.parts import PackPlan, Part, PartSummary, Written

    Array = NDArray[Any]
    Int64Array = NDArray[np.int64]
    Rng = np.random.Generator

Allocate = Callable[[int], Any]
"""Returns writable memory of the given size in bytes, where a batch will be delivered."""
Sizes = Callable[["Int64Array"], "Array | None"]
"""Returns the size of each record in memory after reading, integers [n], or None if unknown."""

C = TypeVar("C")


def capabilities_of(part: Any, kind: type[C]) -> C:
    """Return the declared capabilities of a component, or the defaults of `kind`."""
    found = getattr(part, "capabilities", None)
    return found if isinstance(found, kind) else kind()


# Storage: records by index.


class Index(ABC):
    """Metadata of every record, known without reading the records.

    Attributes:
        columns: Names of the columns next to the key: ``label``, ``size_bytes``, ``height``, ...
        class_names: Class names by label, or None without labels.
        field_classes: Class names by annotated field, such as ``box_labels`` or ``mask``.
    """

    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
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


class Ranks(Protocol):
    """An array that pickles as the path of its file."""

    @property
    def array(self) -> Int64Array:
        """The rank of each record, int64 [n], from 0."""


class Storage(ABC):
    """Random access to the records of a data set.

    A storage whose class has ``parts_inside`` may hold several parts in one file: the method takes
    a path, and returns the paths of ``train``, ``val`` and optionally ``test`` inside, or None.

    Attributes:
        index: Metadata of the records.
        column_fields: The fields of every record, in order, if `take` reads them as columns: each
            has one shape and dtype. Empty without columns.
        reads_urls: The class reads URLs by itself; for other classes the files are copied first.
        is_remote: Records come from a URL, and the index notices when one changes, so that a cache
            may keep them.
        max_record_bytes: The maximum size of a record; larger records are bad.
    """

    index: Index
    column_fields: tuple[str, ...] = ()
    reads_urls: ClassVar[bool] = False
    is_remote: bool = False
    max_record_bytes: int = MAX_RECORD_BYTES

    def __len__(self) -> int:
        return len(self.index)

    @abstractmethod
    def read(self, indices: Int64Array) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], in that order.

        Return a `BadRecord` for each damaged record. Retry temporary failures, then raise them.
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

        Row i equals ``read(indices)[i]``: bools, integers, or floats with NaN for nulls. A field of
        texts is a `core.sample.TextColumn`. The largest array uses the memory of `allocate`.

        Return None if a record is bad; ``read`` reports the record and the cause. Return None, also
        for empty `indices`, if these fields cannot be read as columns.
        """
        return None

    def held_bytes(self, indices: Int64Array) -> Array | None:
        """Return the memory of each record after reading, integers [n], or None if unknown.

        Records that are views of a mapped file take 0 bytes.
        """
        return None

    def shards(self) -> Int64Array:
        """Return the first record of each shard, int64 [s], ascending from 0.

        A shard is a file or a row group that is best read as a whole.
        """
        import numpy as np

        return np.zeros(1, np.int64)

    def keep_most_used(self, ranks: Ranks) -> None:
        """Take a hint before the first read: records ranked by expected access count."""
        return

    def state(self) -> Any:
        """Return plain values that change with any field of a record, or None if unknown."""
        return None


class Writer(ABC):
    """Writes records in the format of the storage with the same name.

    `pack` splits the records into parts and writes several parts at a time, in any process. It
    rewrites a part whose process was killed, under the same file names. The folder is hidden
    until it becomes the result. `pack` checksums and syncs the files that a writer names. Before
    `finish` it removes hidden files, so give temporary files hidden names, as
    `core.files.write_whole` does. Storages ignore the file ``.packed.npz`` of `pack`.

    A writer is deterministic: equal records and arguments give equal bytes. Raise a one-line
    ValueError for records that the format cannot hold, in `begin` if the plan's samples show it.

    docs/architecture.md has a complete example with a file and a table for each part.

    Attributes:
        version: Version of the format; `pack` resumes only parts of the same version.
        part_records: The maximum number of records in a part.
        part_bytes: The maximum bytes of a part, by ``size_bytes`` of the source's index.
        cannot_hold: The kinds of fields that the format refuses, from `core.parts.KINDS`.
        storage_arguments: The arguments, other than the path, that the storage needs to read the
            result.
    """

    version: int = 1
    part_records: int = 10_000
    part_bytes: int = 1 << 28
    cannot_hold: frozenset[str] = frozenset()
    storage_arguments: Mapping[str, Any] = MappingProxyType({})

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Prepare the folder; called at every start, when finished parts may exist."""
        return

    @abstractmethod
    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write `records`, the readable records of `part`, in any process."""

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Add a part's spooled files, in one process and in order; called again after a kill."""
        return

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write the files that all parts share; called again after a kill."""
        return


# Annotations: label files that add fields to records.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsToLabel:
    """The records to annotate.

    Attributes:
        storage: The storage of the records.
        keys: The keys of the records, [n].
        root: The folder or file of the whole data set.
        place: The folder or file of these records; may equal `root`.
        part: ``train``, ``val`` or ``test``, or an empty string for data without parts.
        classes: Class names by field, fixed by the training part or the run.
    """

    storage: Storage
    keys: Sequence[str]
    root: str
    place: str
    part: str
    classes: Mapping[str, tuple[str, ...]]


class Annotations(Protocol):
    """Label files next to the data."""

    def of(self, records: RecordsToLabel) -> Sequence[RecordAnnotations]:
        """Read the annotations of a storage's records; raise a one-line ValueError on failure."""


class RecordAnnotations(ABC):
    """The annotations of every record of a storage.

    Attributes:
        classes: Class names by the field that holds the class ids.
        columns: Additional columns for the index, each [n].
    """

    classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    columns: Mapping[str, Array] = MappingProxyType({})

    def fields(self, indices: Int64Array) -> Sequence[Mapping[str, Any] | str]:
        """Return more fields of the records at `indices`, int64 [n]; a string for a bad record."""
        return [{} for _ in indices]

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of all annotations."""


# Source: the shards of a stream.


class Source(ABC):
    """The shards of a stream, each read in order.

    An item is a `BadRecord` or a small object with a ``key``; `load` turns it into a record in a
    worker. The hash of the key decides the split of the item, so keys are equal in all epochs.
    The last item of a damaged shard may be a `BadRecord` with ``ends_shard=True``.

    Attributes:
        reopens: A shard can be read again: by another epoch, by another rank, or to resume.
        continues: Each `read` continues after the previous one, as with a queue. A run can be
            resumed and can have many epochs, but no item repeats.
        class_names: Class names by label, or None.
        max_record_bytes: The maximum size of a record; larger records are bad.
    """

    reopens: bool = True
    continues: bool = False
    class_names: tuple[str, ...] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    @abstractmethod
    def shards(self, epoch: int) -> Sequence[Any]:
        """Return the shards of an epoch: hashable values, in the order of the source."""

    @abstractmethod
    def read(self, shard: Any, start: int) -> Generator[Any]:
        """Yield the items of a shard from number `start`; ``close`` ends the generator.

        `start` is 0 unless `count` knows the shard. Raise failures other than damaged data.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the metadata known before reading, without paths and times."""

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
        return


# Decoder and transform: record to sample, sample to sample, batch to batch.


class Decoder(ABC):
    """Turns a record into a sample; raises a one-line `RecordError` for a damaged record.

    A plain function of a record is also a decoder. Extend this class to declare more.

    Attributes:
        unchanged: Fields pass unchanged.
        columns: Decodes many records at once. Takes the columns of `Storage.take` and returns
            the sample fields without ``index`` and ``key``, or None if a record is bad.
        defer: Decodes all but the image, which stays pending until a transform draws its crop.
        whole_image: Decodes an image to uint8 [H, W, C], which the decoder itself passes through
            unchanged. Caches of pixels need it.
    """

    unchanged: bool = False
    columns: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    defer: Callable[[Record], Sample] | None = None
    whole_image: Callable[[Any], Array] | None = None

    @abstractmethod
    def __call__(self, record: Record) -> Sample: ...

    @classmethod
    def of(cls, decode: Callable[[Record], Sample] | None) -> Decoder:
        """Return `decode` if it is a `Decoder`, else wrap the function in one."""
        return decode if isinstance(decode, Decoder) else _FunctionDecoder(decode)


class _FunctionDecoder(Decoder):
    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, record: Record) -> Sample:
        sample: Sample = self._function(record)
        return sample


class FittedDecoder(Decoder):
    """A decoder that learns statistics of the training part, such as means and vocabularies.

    Attributes:
        statistics: The learned statistics, with a method ``as_json``; None before `learn`.
    """

    statistics: Any = None

    @property
    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """The plain values that, with the data, determine the statistics."""

    @abstractmethod
    def fit(self, chunks: Iterable[Mapping[str, Any]], *, where: str) -> dict[str, Any]:
        """Compute the statistics of all rows, as plain values; raise ValueError without rows.

        Args:
            chunks: Columns by field, some rows at a time: a column of `Storage.take`, or a
                list with None for rows without the field.
            where: Name of the data in messages.
        """

    @abstractmethod
    def learn(self, learned: Mapping[str, Any]) -> None:
        """Set the statistics that `fit` returned."""


class Transform(Protocol):
    """Changes one sample; takes all randomness from `rng`."""

    def __call__(self, sample: Sample, rng: Rng) -> Sample: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformCapabilities:
    """Capabilities of a dataset's transform; see `transforms.cpu.stack.Stack`.

    Attributes:
        unchanged: The transform does nothing.
        global_random: Draws from global random states, so needs its own process.
        crops_first: Begins with a crop whose draw needs only the image size, so decoders may
            defer the image and other fields. For a step: the step is such a crop.
        fills_rows: Calls take ``into``, uint8 [H, W, C], the destination of the image.
        draw: Makes all draws of a sample before its pending image is decoded.
        partner_counts: Returns the number of partners for each step that mixes samples; calls then
            take ``partners``.
    """

    unchanged: bool = False
    global_random: bool = False
    crops_first: bool = False
    fills_rows: bool = False
    draw: Transform | None = None
    partner_counts: Callable[[Rng], Sequence[int]] | None = None


@runtime_checkable
class PartnerTransform(Protocol):
    """A step of an augmentation stack that mixes in other samples of the epoch.

    The partners are decoded but not augmented, have any size and no ``position``.
    """

    def partners(self, rng: Rng) -> int:
        """Return the number of partners for one call; 0 keeps the sample. `rng` is separate."""

    def __call__(self, sample: Sample, rng: Rng, partners: Sequence[Sample]) -> Sample: ...


class BatchTransform(Protocol):
    """Changes a whole batch on its device and returns it."""

    def __call__(self, batch: Batch) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTransformCapabilities:
    """Capabilities of a batch transform: `group` is the number of positions to keep on one rank."""

    group: int = 1


# Dataset: positions to samples.


class AnyDataset(ABC):
    """The common base of indexed data and streams.

    Attributes:
        row_shape: Height, width and channels of the images, if known.
        collate: Replaces the configured collate.
        global_random: Draws from global random states, so needs its own process.
        table: The fitted decoder of a table.
    """

    row_shape: tuple[int, int, int] | None = None
    collate: Collate | None = None
    global_random: bool = False
    table: FittedDecoder | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the data's identity."""


class Dataset(AnyDataset):
    """Reads, decodes and transforms the samples at positions of an epoch.

    Attributes:
        index: Metadata of the records.
        staged: ``fetch`` equals ``finish(read(...))``, and both can be called separately.
        columnar: ``fetch_columns`` can return whole batches, without work for each sample.
        draws_partners: The transform needs other samples; see ``drawing_from``.
        held_bytes: Returns the sizes of records in memory.
    """

    index: Index
    staged: bool = False
    columnar: bool = False
    draws_partners: bool = False
    held_bytes: Sizes | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Return the samples of the records `indices`, int64 [n], at `positions`, int64 [n].

        The result depends only on (seed, epoch, position, index).
        """

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

        `rows`, uint8 [n, *row_shape], is memory of the batch. An image of that shape is written to
        its row, and the sample has a view of the row. `times` accumulates the durations.
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
        """Return the result of ``fetch`` as columns: arrays [n, ...], lists or `Keys`.

        Return None if samples must be made one by one. For `allocate` see `Storage.take`.
        """
        return None

    def drawing_from(self, sampler: Sampler) -> Dataset:
        """Return the same data with the partners that `sampler` places in an epoch."""
        return self


class StreamDataset(AnyDataset):
    """Items without random access, read in order and numbered by position.

    Attributes:
        class_names: Class names by label, or None.
        reopens: The stream can be opened again, and by several ranks.
        readers: Number of parts that can be read in parallel. If above 1, `open` takes ``reader``,
            the number of the part.
        foreign_reader: The user's code reads the stream, in worker processes if there are any.
    """

    class_names: tuple[str, ...] | None = None
    reopens: bool = True
    readers: int = 1
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


class Sampler(Protocol):
    """Maps positions to records: a pure, stateless, picklable function.

    A constructor argument ``batch_size`` receives the global batch size, over all ranks.
    """

    def __len__(self) -> int:
        """Return the number of positions in an epoch."""

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Return the record indices at positions `start` to `stop` - 1, int64 [stop - start]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCapabilities:
    """Capabilities of a sampler.

    Attributes:
        group: Number of positions to keep on one rank.
        cuts: Returns the bounds of an epoch's batches, int64 [B + 1], ascending, with the same B in
            all epochs. None: every batch has ``batch_size`` positions.
        same: Index columns in which a replacement equals the bad record.
        at: Returns the records, int64 [n], at any positions of an epoch, int64 [n]; the loader
            calls it for many batches at once.
        fingerprint: Returns a hash of external data, such as a file of weights.
        by_content: Arguments that `fingerprint` covers; a resumed run may change their paths.
        uses: Returns the expected access counts of the records in an epoch, up to a factor,
            float [n]. None: all are equal.
        of_source: For a mix: returns records of one source near positions of an epoch.
        sampler_of: For a mix: returns the sampler of a source by name.
    """

    group: int = 1
    cuts: Callable[[int], Int64Array] | None = None
    same: tuple[str, ...] = ()
    at: Callable[[int, Int64Array], Int64Array] | None = None
    fingerprint: Callable[[], str] | None = None
    by_content: tuple[str, ...] = ()
    uses: Callable[[], Array] | None = None
    of_source: Callable[[int, int, Int64Array], Int64Array] | None = None
    sampler_of: Callable[[str], Any] | None = None


class Collate(Protocol):
    """Merges samples into a batch; images stay uint8 [B, H, W, C]."""

    def __call__(self, samples: list[Sample]) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateCapabilities:
    """Capabilities of a collate.

    Attributes:
        with_rows: Collates samples whose images are already in the batch's memory,
            uint8 [B, H, W, C].
        into: Collates with the largest tensor in allocated memory.
        columns: Collates columns of samples.
        overhead: Returns the number of data elements in ragged fields, and the number with padding.
        global_random: Draws from global random states, so needs its own process.
    """

    with_rows: Callable[[list[Sample], NDArray[np.uint8]], Batch] | None = None
    into: Callable[[list[Sample], Allocate], Batch] | None = None
    columns: Callable[[dict[str, Any]], Batch] | None = None
    overhead: Callable[[Batch], tuple[int, int]] | None = None
    global_random: bool = False


# Training: the consumers of batches.


class Model(Protocol):
    """A torch module that takes the batch."""

    def __call__(self, batch: Batch) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """Facts about a model, derived from its arguments before it is built.

    A model registers a function as ``capabilities``. It takes some of the config's arguments by
    name, returns these facts, and raises ValueError for wrong arguments.

    Attributes:
        mean: Channel means that the weights expect, for values 0..1; None: any.
        std: Channel standard deviations that the weights expect; None: any.
        begins_with: Arguments that choose initial weights, mapped to values for random weights. A
            model that loads a checkpoint is built with these values. ``weights`` is a path.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    begins_with: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """Computes losses and metrics of outputs and batch.

    Losses are means over valid rows; metrics ignore invalid rows. A task for ``penstock predict``
    is also a `PredictingTask`.
    """

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
        matrix with true classes as rows and predicted classes as columns. In a [C + 1, C + 1]
        matrix the last class is the background: missed objects and false detections.
        """


@runtime_checkable
class FittedTask(Protocol):
    """A task that needs statistics of the training part, such as the mean of its target."""

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Compute the statistics, plain values, from the training part's index, None for a stream.

        An empty result is not saved.
        """

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

        Probabilities of all classes are `pipeline.learning.outputs.Probabilities`. The caller drops
        invalid rows.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerCapabilities:
    """Capabilities of a logger.

    Attributes:
        remote: Writes to a service. The framework calls it in a separate thread, retries failures,
            and never stops training for them.
        begin: Opens the run, or continues the run of the checkpoint; called once, before training.
            Raises a one-line ValueError.
        failed: Called before `close` if the run ends early.
        picture: Logs a picture of a step by name, uint8 [H, W, 3], RGB.
    """

    remote: bool = False
    begin: Callable[[], None] | None = None
    failed: Callable[[], None] | None = None
    picture: Callable[[int, str, NDArray[np.uint8]], None] | None = None


class Logger(Protocol):
    """Records the metrics of a run; called only on rank 0."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the log, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Truncate the log to the checkpoint, or skip later values."""

    def close(self) -> None:
        """Flush and close."""


@dataclass(frozen=True, slots=True)
class CallbackCapabilities:
    """Capabilities of a callback; declare them in its class.

    Attributes:
        watches: Changes no results, so a resumed run may add or drop the callback.
        limits: Arguments that limit the length of a run; higher is longer, None is unlimited.
    """

    watches: bool = False
    limits: tuple[str, ...] = ()


class Callback(Protocol):
    """A hook into training, called on every rank; inherit it and override what you need."""

    def stepped(self, step: int) -> None:
        """Run after an optimizer step, counted from 1, while its gradients exist."""
        return None

    def evaluating(self) -> AbstractContextManager[object]:
        """Return a context for validating the model and saving its weights."""
        return nullcontext()

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """Run after an epoch, with its validation metrics if it was validated."""
        return None

    def stop(self) -> str | None:
        """Return a reason to end training, or None; called before each epoch and after resume."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the checkpoint state; called on all ranks in `evaluating`, saved for rank 0."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the checkpoint state; the model already has its weights."""
        return None

    def close(self) -> None:
        """Flush and close open files."""
        return None

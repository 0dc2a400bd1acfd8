"""Every contract between the stages, in the order in which data flows.

    storage -> decoder -> transform -> dataset -> sampler -> collate -> model and task

Whatever crosses to another process pickles as its recipe (its arguments), opens its handles on
first use in the process that uses them, and is safe under fork, spawn and forkserver.

What a component can do beside its contract it declares in one place, the attribute or property
``capabilities``, an instance of the frozen class below that bears its group's name::

    @register("sampler", "pairs")
    class PairSampler:
        capabilities = SamplerCapabilities(group=2)

One without it does what its contract says, and no more. They are read once, by
`capabilities_of`, when a dataset or a loader is built; what wraps another component declares what
that one declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

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
"""Gives writable memory of so many bytes, where a batch will be delivered."""
Gather = Callable[["Array", "Int64Array", "Allocate | None"], "Array"]
"""Gives the rows, int64 [n], of an array as an array of n rows, in memory of the third if any."""
Sizes = Callable[["Int64Array"], "Array | None"]
"""Gives the memory that each record takes once it is read, integers [n]; None: unknown."""

C = TypeVar("C")


def capabilities_of(part: Any, kind: type[C]) -> C:
    """Read what a component declares that it can do besides; without a declaration: nothing."""
    found = getattr(part, "capabilities", None)
    return found if isinstance(found, kind) else kind()


# Storage: where records lie.


class Index(ABC):
    """Metadata of every record, known without reading the records.

    Attributes:
        columns: Names of the columns beside the key: ``label``, ``size_bytes``, ``height``, ...
        class_names: Names of the classes by label, or None where there are no labels.
        field_classes: Names of the classes by annotated field: ``box_labels``, ``mask``.
    """

    columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    field_classes: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def keys(self, indices: Int64Array) -> list[str]:
        """Keys of the given indices, int64 [n]."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels; not of paths or times."""

    def column(self, name: str) -> Array:
        """One column as an array [len(self)]; KeyError names the columns there are."""
        known = ", ".join(self.columns) or "none"
        raise KeyError(f"index: no column {name!r}; columns: {known}")

    def values(self, name: str, indices: Int64Array) -> Array:
        """Values of one column at the given indices, [n]."""
        return self.column(name)[indices]

    def key_column(self, indices: Int64Array) -> list[str] | Keys:
        """Keys of the given indices, as strings that are made when somebody looks at them."""
        return self.keys(indices)

    def raw_keys(self, indices: Int64Array) -> list[bytes]:
        """Keys of the given indices, int64 [n], as the bytes that they are in the data."""
        return [key.encode("utf-8", "surrogateescape") for key in self.keys(indices)]


@runtime_checkable
class Storage(Protocol):
    """Records of a data set, read by their index."""

    def __len__(self) -> int: ...

    @property
    def index(self) -> Index: ...

    def read(self, indices: Int64Array) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], in that order.

        One bad record never spoils the others. Passing trouble is retried, then raised.
        """

    def fingerprint(self) -> str:
        """Hash of the data's identity: equal for a copy of the data at another place."""


class ColumnStorage(Storage, Protocol):
    """A storage whose records all have the same fields, each with values of one shape and type."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record, in their order."""

    def take(
        self,
        indices: Int64Array,
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
    ) -> dict[str, Any] | None:
        """Read the given fields of the records at `indices`, int64 [n], as new arrays [n, ...].

        Return None if a record is bad: ``read`` reports which one, and why. Return None, for empty
        `indices` too, if these fields have no columns.
        Row i holds what ``read`` returns for ``indices[i]``: bools, integers, or floats with NaN
        for nulls. Texts are a `core.sample.TextColumn`.
        `allocate` returns memory for the largest of the arrays.
        """


class GatheringStorage(ColumnStorage, Protocol):
    """A storage whose fields lie in arrays as a whole, so that others can gather their rows."""

    def take(
        self,
        indices: Int64Array,
        fields: Collection[str],
        *,
        allocate: Allocate | None = None,
        gather: Mapping[str, Gather] | None = None,
    ) -> dict[str, Any] | None:
        """Read columns; a field that `gather` names is what that gives of its array."""


class Ranks(Protocol):
    """An array that crosses to other processes as the file that it lies in."""

    @property
    def array(self) -> Int64Array:
        """The rank of each record, int64 [n], from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCapabilities:
    """Capabilities of a storage.

    Attributes:
        columns: Gives columns: the storage itself, or what it wraps.
        gathering: Lets others gather rows of its arrays: the same one.
        held_bytes: Knows the memory of its records better than the index's ``size_bytes``:
            records that are views of a mapped file take none.
        shards: Gives the first record of each of its shards, int64 [s], ascending: what is best
            read together, files or groups of rows.
        reads_copies: Reads copies on this machine of what lies elsewhere.
        keep_most_used: Is told how records rank by their expected uses, before any is read: a
            cache.
        wraps: The storage whose records it passes on.
    """

    columns: ColumnStorage | None = None
    gathering: GatheringStorage | None = None
    held_bytes: Sizes | None = None
    shards: Callable[[], Int64Array] | None = None
    reads_copies: bool = False
    keep_most_used: Callable[[Ranks], None] | None = None
    wraps: Storage | None = None


@runtime_checkable
class PartedStorage(Protocol):
    """A storage class one of whose files can hold all parts of a data set."""

    @staticmethod
    def parts_inside(path: str) -> dict[str, str] | None:
        """Find the paths of ``train``, ``val`` and, if there is one, ``test`` in a file."""


@runtime_checkable
class UrlReader(Protocol):
    """A class of storages or sources that says whether its path may be a URL.

    Of one that reads none, or does not say so, the files are copied to this machine first.
    """

    @property
    def reads_urls(self) -> bool:
        """Whether it reads what lies behind a URL by itself."""


class Writer(Protocol):
    """Writes records in the form that the storage of the same name reads.

    Records are written in parts, each by any process, several at a time; a part whose process
    was killed is written again, over the same names. The folder is a hidden one that becomes the
    result. Packing itself keeps the checksums of the files that a writer names, syncs them, and
    removes hidden files before `finish`: temporary ones are best hidden, as those of
    `core.files.write_whole` are. Its own ``.packed.npz`` is hidden from storages.

    docs/architecture.md has a whole one, which keeps a file and its table for each part.

    The same records and arguments give the same bytes. What a record holds that the form cannot
    is a ValueError of one line, from `begin` where the plan's samples show it.
    """

    @property
    def version(self) -> int:
        """Of what is written: another version does not go on with its parts."""

    @property
    def part_records(self) -> int:
        """The most records of a part."""

    @property
    def part_bytes(self) -> int:
        """The most bytes of a part, as far as the source's index knows them."""

    @property
    def cannot_hold(self) -> frozenset[str]:
        """Kinds of fields that it refuses, of `core.parts.KINDS`."""

    @property
    def storage_arguments(self) -> Mapping[str, Any]:
        """Arguments that the storage of this name needs beside the path to read what is written."""

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Prepare the folder, at every start: parts may be there already."""

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write all of `records`, those of `part` that can be read, in any process."""

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Add what a part spooled; in one process, in order, and again if it was killed in it."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write what all parts together need; again if it was killed in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCapabilities:
    """Capabilities of a writer.

    Attributes:
        in_place: A part is written into files that `Writer.begin` made, and not as the files that
            its `Written` names: whoever writes one must see the folder.
    """

    in_place: bool = False


# Annotations: what label files add to records.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsToLabel:
    """The records that annotations are asked for.

    Attributes:
        storage: Where they lie.
        keys: Their keys, [n].
        root: The folder, or file, of the whole data set.
        place: That of these records, which may be the same.
        part: ``train``, ``val`` or ``test`` where the data has parts, else an empty string.
        classes: Names of the classes by field, which the training part, or a run, has settled.
    """

    storage: Storage
    keys: Sequence[str]
    root: str
    place: str
    part: str
    classes: Mapping[str, tuple[str, ...]]


class Annotations(Protocol):
    """Label files beside the data."""

    def of(self, records: RecordsToLabel) -> Sequence[RecordAnnotations]:
        """Read the annotations of a storage's records; ValueError (one line) if that fails."""


class RecordAnnotations(Protocol):
    """Annotations of every record of a storage, beside what the storage holds."""

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes, by the field that holds their ids."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """Columns for the index, each [n]."""

    def fields(self, indices: Int64Array) -> Sequence[Mapping[str, Any] | str]:
        """More fields of the records at `indices`, int64 [n]; a line where a record is bad."""

    def fingerprint(self) -> str:
        """Hash of all that is annotated."""


# Source: where a stream comes from.


class Source(ABC):
    """Shards of a stream, each read in order.

    An item is a `BadRecord`, or something small with a ``key``, of which `load` makes the record in
    a worker. The hash of the key decides the item's split, so an item has one key in every epoch.
    The last item of a damaged shard may be a `BadRecord` with ``ends_shard=True``.

    Attributes:
        reopens: A shard can be read again: in another epoch, on another rank, to resume.
        continues: Each `read` continues behind the last one, as of a queue: the source can be
            resumed and read in many epochs, but no item comes twice.
        class_names: Names of the classes by label, or None.
        max_record_bytes: Larger records are bad.
    """

    reopens: bool = True
    continues: bool = False
    class_names: tuple[str, ...] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES

    @abstractmethod
    def shards(self, epoch: int) -> Sequence[Any]:
        """List the shards of an epoch: hashable values, in the source's own order."""

    @abstractmethod
    def read(self, shard: Any, start: int) -> Generator[Any]:
        """Yield the items of a shard from the `start`-th on; ``close`` ends the generator.

        `start` is 0 unless `count` knows the shard. Trouble that is no damage of the data raises.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash what is known of the data without reading it, without paths or times."""

    def load(self, item: Any) -> Record | BadRecord:
        """Make the record of an item, in any process."""
        record: Record | BadRecord = item
        return record

    def count(self, shard: Any) -> int | None:
        """Count the items of a shard without reading it; None if that is unknown."""
        return None

    def settled(self) -> Mapping[str, Mapping[Any, Any]]:
        """Return arguments that make every rank and every resume find the same data."""
        return {}

    def acknowledge(self, records: int) -> None:
        """Release the first `records` of the epoch, in the order of positions: they are saved."""
        return


# Decoder and transform: record to sample, sample to sample, batch to batch.


class Decoder(Protocol):
    """Turns a record into a sample; raises `RecordError`, one line, for a damaged record."""

    def __call__(self, record: Record) -> Sample: ...


class FittedDecoder(Decoder, Protocol):
    """A decoder that must know figures of the training part, such as means and vocabularies."""

    @property
    def statistics(self) -> Any:
        """The figures that it has learned; None before. They have a method ``as_json``."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """Plain values that decide the figures beside the data."""

    def fit(self, chunks: Iterable[Mapping[str, Any]], *, where: str) -> dict[str, Any]:
        """Compute the figures, plain values, of all rows; ValueError where there are none.

        Args:
            chunks: Columns of the same rows by field, some rows at a time: each as
                `ColumnStorage.take` gives it, or a list, with None where a row lacks the field.
            where: The data, for messages.
        """

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCapabilities:
    """Capabilities of a decoder.

    Attributes:
        unchanged: It passes every field on as it is.
        columns: Decodes many records at once: of fields as `ColumnStorage.take` gives them it
            makes those of the samples, but ``index`` and ``key``; None where a record is bad.
        defer: Decodes, but leaves the image pending until its crop is drawn.
        whole_image: Decodes an image to uint8 [H, W, C]; the samples are the same if that was
            done before. Without it no cache can keep pixels.
        fitted: The decoder itself, if it learns from the training part.
    """

    unchanged: bool = False
    columns: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    defer: Decoder | None = None
    whole_image: Callable[[Any], Array] | None = None
    fitted: FittedDecoder | None = None


class Transform(Protocol):
    """Changes one sample; every random draw comes from `rng`."""

    def __call__(self, sample: Sample, rng: Rng) -> Sample: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformCapabilities:
    """Capabilities of a dataset's transform; see `transforms.cpu.stack.Stack`.

    Attributes:
        unchanged: It does nothing.
        global_random: It draws from global random states, and needs a process of its own.
        crops_first: It begins with a crop that is drawn from the image's size alone, so that a
            decoder may leave the image, or what else it decodes, pending. Of a step: it is one.
        fills_rows: A call takes ``into``, uint8 [H, W, C], where the image is to be put.
        draw: Makes all draws of a sample before its pending image is decoded.
        partner_counts: Says how many other samples of the epoch each step that needs some asks
            for; a call then takes ``partners``.
    """

    unchanged: bool = False
    global_random: bool = False
    crops_first: bool = False
    fills_rows: bool = False
    draw: Transform | None = None
    partner_counts: Callable[[Rng], Sequence[int]] | None = None


@runtime_checkable
class PartnerTransform(Protocol):
    """A step of an augmentation stack that needs other samples of the epoch.

    They are decoded and nothing else, have no ``position``, and are of any size.
    """

    def partners(self, rng: Rng) -> int:
        """Count those it needs this time; 0 leaves the sample as it is. For a draw of its own."""

    def __call__(self, sample: Sample, rng: Rng, partners: Sequence[Sample]) -> Sample: ...


class BatchTransform(Protocol):
    """Changes a whole batch where the batch is (the device); returns the batch."""

    def __call__(self, batch: Batch) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTransformCapabilities:
    """Needs of a batch transform: `group` positions that no rank may cut apart."""

    group: int = 1


class RowTransform(BatchTransform, Protocol):
    """A batch transform that changes images and masks, each row by itself, and nothing else."""

    def prepare(self) -> None:
        """Get ready for `gathered`: called where the loader is made, before workers start."""

    def gathered(
        self,
        positions: Int64Array,
        epoch: int,
        array: Array,
        rows: Int64Array,
        allocate: Allocate | None,
    ) -> Array:
        """Change the images `rows`, int64 [n], of `array`, at `positions`, int64 [n]."""


# Dataset: positions to samples.


@runtime_checkable
class Dataset(Protocol):
    """Positions of an epoch to samples: read, decoded and transformed."""

    def __len__(self) -> int: ...

    @property
    def index(self) -> Index: ...

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Make the samples of the records `indices`, int64 [n], drawn at `positions`, int64 [n].

        What comes back is a function of (seed, epoch, position, index) alone.
        """

    def fingerprint(self) -> str: ...


class StagedDataset(Dataset, Protocol):
    """A dataset whose reading can be done apart: ``fetch`` is ``finish`` of what `read` gives."""

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images, as far as can be told; None: unknown."""

    def read(self, indices: Int64Array, positions: Int64Array, epoch: int) -> Sequence[Any]:
        """Read what lies at `indices`, int64 [n], as `finish` takes it; from any thread."""

    def finish(
        self,
        records: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Make samples of what `read` gave, drawn at `positions`, int64 [n].

        `rows`, uint8 [n, *row_shape], is memory of the batch to come: an image of that shape is
        written to its row, and is then a view of it. `times` is added to.
        """


class ColumnDataset(StagedDataset, Protocol):
    """A staged dataset that can give a batch as a whole, where nothing is done per sample."""

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Allocate | None = None,
        gather: Callable[..., Array] | None = None,
    ) -> dict[str, Any] | None:
        """Make what ``fetch`` gives, a column per field: arrays [n, ...], lists of n, `Keys`.

        None where samples must be made one by one. `allocate`: see `ColumnStorage.take`. Where
        the dataset `gathers`, `gather` gives images and masks, called with ``positions``,
        ``epoch`` and the arguments of a `Gather`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCapabilities:
    """Capabilities of a dataset.

    Attributes:
        staged: Reads apart: the dataset itself.
        columns: Gives whole batches: the dataset itself.
        gathers: Lets ``fetch_columns`` be told how rows of images are gathered.
        drawing_from: Gives the same data with the other samples that its transform needs, as a
            sampler places them in an epoch; None where it needs none.
        held_bytes: Knows the memory that records take once they are read.
        collate: Puts its samples together, in place of the configured collate.
        global_random: Draws from global random states, and needs a process of its own.
        table: The decoder that knows figures of a table's columns.
        readers: Of a stream: into how many parts it can be read side by side, see its ``open``.
        foreign_reader: Of a stream: what reads it is code of the user's, and is to run in
            processes where there are workers.
    """

    staged: StagedDataset | None = None
    columns: ColumnDataset | None = None
    gathers: bool = False
    drawing_from: Callable[[Sampler], Dataset] | None = None
    held_bytes: Sizes | None = None
    collate: Collate | None = None
    global_random: bool = False
    table: Any = None
    readers: int = 1
    foreign_reader: bool = False


@runtime_checkable
class StreamDataset(Protocol):
    """Items that cannot be indexed: they are read in order and numbered by position.

    One that declares several `readers` takes ``reader`` in `open`: the number of the part to read.
    """

    def open(self, epoch: int, start: int) -> Iterator[Any]:
        """Iterate over the epoch's raw items from the `start`-th on, in order.

        A generator: ``close`` of what comes back ends the reading.
        """

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None."""

    @property
    def reopens(self) -> bool:
        """Whether it can be opened again, and by several ranks."""

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images, as far as can be told; None: unknown."""

    def fetch_items(
        self,
        items: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Turn raw items of `open` into samples; `rows` and `times` as in `StagedDataset`."""

    def fingerprint(self) -> str: ...


# Sampler and collate: position to record, samples to a batch.


class Sampler(Protocol):
    """Position to record. Pure, without state, picklable.

    One that asks for ``batch_size`` is told the positions of a batch over all ranks.
    """

    def __len__(self) -> int:
        """Number of positions in an epoch."""

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Record indices at positions `start` .. `stop` - 1 of `epoch`, int64 [stop - start]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCapabilities:
    """Capabilities of a sampler, and what it asks for.

    Attributes:
        group: Positions that no rank may cut apart.
        cuts: Gives where the batches of an epoch begin and end among its positions, int64 [B + 1],
            ascending, B the same in every epoch; None: they have ``batch_size`` each.
        same: Index columns whose values a record has that replaces a bad one.
        at: Gives records at any positions of an epoch, int64 [n] both: asked for many batches
            at once.
        fingerprint: Hash of what it takes from elsewhere, such as weights in a file.
        by_content: Arguments that `fingerprint` stands for: the file may lie elsewhere.
        uses: Gives the expected uses of each record in an epoch, in proportion, float [n]; None:
            all alike.
        of_source: In a mix: gives records of one source near to positions of an epoch.
        sampler_of: In a mix: gives the sampler of a source by its name.
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
    """Puts samples together into a batch; images stay uint8 [B, H, W, C]."""

    def __call__(self, samples: list[Sample]) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateCapabilities:
    """Capabilities of a collate.

    Attributes:
        with_rows: Makes the same of samples whose images were written into memory of the batch,
            uint8 [B, H, W, C].
        into: Makes the same with its largest tensor in memory that is asked for.
        columns: Makes the same of the samples' columns.
        overhead: Counts elements of ragged fields that are data, and all with the padding.
        global_random: It draws from global random states, and needs a process of its own.
    """

    with_rows: Callable[[list[Sample], NDArray[np.uint8]], Batch] | None = None
    into: Callable[[list[Sample], Allocate], Batch] | None = None
    columns: Callable[[dict[str, Any]], Batch] | None = None
    overhead: Callable[[Batch], tuple[int, int]] | None = None
    global_random: bool = False


# Training: what consumes batches.


class Model(Protocol):
    """A torch module that is called with the batch."""

    def __call__(self, batch: Batch) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """What the arguments of a model say of it before it is made.

    They are given by the function that `core.registry.register` is told as ``capabilities``, which
    asks for some of the config's arguments by name, and refuses wrong ones by a ValueError.

    Attributes:
        mean: What its weights want to be taken away from each channel of images, of values 0..1.
        std: What they want it to be divided by. Of both, None: it takes any.
        begins_with: Arguments that say which weights it begins with, and their values for none,
            with which it is made where a checkpoint has all weights. ``weights`` is a path.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    begins_with: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """Turns outputs and batch into losses and metrics.

    Losses are means over the rows that are valid; metrics leave invalid rows out. One whose
    outputs are to be written by ``penstock predict`` is a `PredictingTask` too.
    """

    def losses(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Scalar tensors by name, each the mean over valid rows; their sum is trained on."""

    def metrics(self) -> Any:
        """New and empty: a ``MetricCollection``, or what has its ``compute`` and ``to``."""

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""


@runtime_checkable
class ClassTask(Protocol):
    """A task whose figures can be told class by class, as ``evaluate`` does."""

    num_classes: int
    class_names: tuple[str, ...] | None

    def metrics_by_class(self) -> Any:
        """As `metrics`, and filled alike, with figures of more than one number besides.

        They are [C], a figure for each class by its id, NaN where it has none, or integer
        [C, C], a confusion matrix: rows are the true classes, columns the predicted ones. One of
        [C + 1, C + 1] has the background last: what is missed, and what is found for nothing.
        """


@runtime_checkable
class FittedTask(Protocol):
    """A task that must know figures of the training part, such as means of what it predicts."""

    def fit(self, index: Index | None) -> dict[str, Any]:
        """Compute the figures, plain values, from the index of the training part.

        It is None for a stream. Nothing is kept of a task that gives no figures.
        """

    def learn(self, figures: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave, which a run keeps."""


@runtime_checkable
class TaskGroup(Protocol):
    """Several tasks by name, whose figures are called ``<task>_<figure>``."""

    tasks: Mapping[str, Task]

    def metrics_by_class(self) -> Any:
        """As those of each `ClassTask` among them, whose tensors are called ``<task>/<figure>``."""


@runtime_checkable
class PredictingTask(Protocol):
    """A task whose model's outputs can be told, row by row."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Columns: each a tensor [B] or [B, n], or a list of B plain values, lists or bytes.

        Those of all classes are `pipeline.learning.outputs.Probabilities`. Rows that are not valid
        are dropped by whoever asked.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerCapabilities:
    """Capabilities of a logger.

    Attributes:
        remote: Writes to a service: a thread of its own calls it, and what fails there is tried
            again, and stops no training.
        begin: Opens the run, or goes on in the one of a checkpoint; called once, before training.
            ValueError (one line) if that fails.
        failed: Is told, before `close`, that the run ends before it is done.
        picture: Takes a picture of a step under a name, uint8 [H, W, 3], RGB.
    """

    remote: bool = False
    begin: Callable[[], None] | None = None
    failed: Callable[[], None] | None = None
    picture: Callable[[int, str, NDArray[np.uint8]], None] | None = None


class Logger(Protocol):
    """Takes the figures of a run. Called on rank 0 alone."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""

    def state_dict(self) -> dict[str, Any]:
        """Tell the log's place, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut the log back to where it stood at the checkpoint, or leave out what it has since."""

    def close(self) -> None:
        """Flush and close."""


@dataclass(frozen=True, slots=True)
class CallbackCapabilities:
    """What a callback declares; ``capabilities`` stands in its class.

    Attributes:
        watches: It changes nothing that is computed, so that a run goes on with or without it.
        limits: Arguments that say how long a run is: more is longer, and None is no limit.
    """

    watches: bool = False
    limits: tuple[str, ...] = ()


class Callback(Protocol):
    """Takes part in training, on every rank; one that inherits this writes only what it needs."""

    def stepped(self, step: int) -> None:
        """Act on an optimizer step, counted from 1, whose gradients are still there."""
        return None

    def evaluating(self) -> AbstractContextManager[object]:
        """Make a context in which the model is validated, and in which its weights are saved."""
        return nullcontext()

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """Act on the end of an epoch, with the figures of its validation if there was one."""
        return None

    def stop(self) -> str | None:
        """Tell why training ends here, if it does; asked before each epoch, and once resumed."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Tell what it goes on from; asked on every rank within `evaluating`, kept of rank 0."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, whose weights the model has already."""
        return None

    def close(self) -> None:
        """Write and close what is open."""
        return None

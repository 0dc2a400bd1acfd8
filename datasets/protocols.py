"""The contracts between the stages, on one page.

Whatever crosses to another process pickles as its recipe (its arguments), opens its
handles on first use in the process that uses them, and is safe under fork, spawn and
forkserver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from datasets.sample import BadRecord, BadSample, Batch, Record, Sample
from datasets.stage_times import StageTimes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.parts import PackPlan, Part, PartSummary, Written

    Int64Array = NDArray[np.int64]


@runtime_checkable
class Index(Protocol):
    """Metadata of every record, known without reading the records; memory-mapped."""

    def __len__(self) -> int: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key: ``label``, ``size_bytes``, ``height``, ..."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None where there are no labels."""

    def column(self, name: str) -> NDArray[Any]:
        """One column as an array [len(self)]; KeyError names the columns there are."""

    def keys(self, indices: Int64Array) -> list[str]:
        """Keys of the given indices, int64 [n]."""

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels; not of paths or times."""


@runtime_checkable
class Storage(Protocol):
    """Where records lie."""

    def __len__(self) -> int: ...

    @property
    def index(self) -> Index:
        """The metadata of this storage."""

    def read(self, indices: Int64Array) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], in that order.

        One bad record never spoils the others. Passing trouble is retried, then raised.
        """

    def fingerprint(self) -> str:
        """Hash of the data's identity: equal for a copy of the data at another place."""


@runtime_checkable
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
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """The given fields of the records at `indices`, int64 [n], as new arrays [n, ...].

        None where one of the records is bad: ``read`` says which, and why.
        Row i holds what ``read`` gives for ``indices[i]``; numbers are bool, integers or floats.
        `allocate` gives writable memory of so many bytes, for the largest of the arrays.
        """


class RecordAnnotations(Protocol):
    """What is known of every record of a storage beside what the storage holds."""

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes, by the field that holds their ids."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Columns for the index, each [n]."""

    def fields(self, indices: Int64Array) -> Sequence[Mapping[str, Any] | str]:
        """More fields of the records at `indices`, int64 [n]; a line where a record is bad."""

    def fingerprint(self) -> str:
        """Hash of all that is annotated."""


class Annotations(Protocol):
    """Where annotations lie: label files beside the data."""

    def of(
        self,
        storage: Storage,
        keys: Sequence[str],
        *,
        root: str,
        part: str,
        classes: Mapping[str, tuple[str, ...]],
    ) -> Sequence[RecordAnnotations]:
        """The annotations of a storage's records.

        Args:
            storage: The images.
            keys: Their keys, [n].
            root: The folder, or file, of the whole data set.
            part: ``train`` or ``val`` where the data has parts, else an empty string.
            classes: Names of the classes by field, which the training part has settled.

        Raises:
            ValueError: Label files are missing or are none (one line).
        """


class Writer(Protocol):
    r"""Writes records in the form that the storage of the same name reads.

    Records are written in parts, each by any process, several at a time; a part whose process
    was killed is written again, over the same names. The folder is a hidden one that becomes the
    result. Packing itself keeps the checksums of the files that a writer names, syncs them, and
    removes hidden files before `finish`: temporary ones are best hidden, as those of
    `datasets.index.write_whole` are. Its own ``.packed.arrow`` is hidden from storages.

    A writer that keeps one file for each part::

        @register("writer", "lines")
        class LinesWriter:
            version, part_bytes, cannot_hold, storage_arguments = 1, 1 << 26, frozenset(), {}

            def __init__(self, *, part_records: int = 10_000) -> None:
                self.part_records = part_records

            def begin(self, folder, plan): ...

            def write_part(self, folder, plan, part, records):
                name = f"lines-{part.number:05d}-of-{len(plan.parts):05d}.txt"
                with open(folder / name, "wb") as file:
                    file.writelines(record.fields["image"] + b"\n" for record in records)
                return Written(files=(name,))

            def join_part(self, folder, plan, summary): ...

            def finish(self, folder, plan, summaries): ...

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
        """What it refuses, of `datasets.parts.KINDS`."""

    @property
    def storage_arguments(self) -> Mapping[str, Any]:
        """What the storage of this name needs beside the path to read what is written."""

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Prepare the folder, at every start: parts may be there already.

        Raises:
            ValueError: The form cannot hold these records.
        """

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write all of `records`, those of `part` that can be read, in any process.

        Raises:
            ValueError: The form cannot hold one of them.
        """

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """Add what a part spooled; in one process, in order, and again if it was killed in it."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Write what all parts together need; again if it was killed in it."""


class Decoder(Protocol):
    """Turns a record into a sample; ValueError (one line) for a record that is damaged.

    One that passes every field on as it is has an attribute ``unchanged`` that is True. One whose
    samples are the same if their image was decoded before, whole, by its method ``decode``, has
    an attribute ``parts_are_exact`` that is True.
    """

    def __call__(self, record: Record) -> Sample: ...


@runtime_checkable
class FittedDecoder(Decoder, Protocol):
    """A decoder that must know figures of the training part, such as means and vocabularies."""

    @property
    def statistics(self) -> Any:
        """What it has learned; None before. It has a method ``as_json``."""

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What decides the figures beside the data: plain values."""

    def fit(self, chunks: Iterable[Sequence[Mapping[str, Any]]], *, where: str) -> dict[str, Any]:
        """The figures, plain values, of the fields of all rows; ValueError where there are none."""

    def learn(self, learned: Mapping[str, Any]) -> None:
        """Take the figures that `fit` gave."""


class Transform(Protocol):
    """Changes one sample; every random draw comes from `rng`.

    One without anything to do has an attribute ``unchanged`` that is True.
    """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample: ...


class PartnerTransform(Protocol):
    """A step of an augmentation stack that needs other samples of the epoch.

    They are decoded and nothing else, have no ``position``, and are of any size.
    """

    def partners(self, rng: np.random.Generator) -> int:
        """How many it needs this time; 0 leaves the sample as it is. For a draw of its own."""

    def __call__(
        self, sample: Sample, rng: np.random.Generator, partners: Sequence[Sample]
    ) -> Sample: ...


@runtime_checkable
class Dataset(Protocol):
    """Positions of an epoch to samples: read, decoded and transformed."""

    def __len__(self) -> int: ...

    @property
    def index(self) -> Index: ...

    def fetch(
        self, indices: Int64Array, positions: Int64Array, epoch: int
    ) -> list[Sample | BadSample]:
        """Samples of the records `indices`, int64 [n], drawn at `positions`, int64 [n].

        What comes back is a function of (seed, epoch, position, index) alone.
        """

    def fingerprint(self) -> str: ...


@runtime_checkable
class StagedDataset(Dataset, Protocol):
    """A dataset whose reading can be done apart: ``fetch`` is ``finish`` of what `read` gives."""

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images, as far as can be told; None: unknown."""

    def read(self, indices: Int64Array) -> list[Any]:
        """What lies at `indices`, int64 [n], as `finish` takes it; from any thread."""

    def finish(
        self,
        records: Sequence[Any],
        positions: Int64Array,
        epoch: int,
        *,
        rows: NDArray[np.uint8] | None = None,
        times: StageTimes | None = None,
    ) -> list[Sample | BadSample]:
        """Samples of what `read` gave, drawn at `positions`, int64 [n].

        `rows`, uint8 [n, *row_shape], is memory of the batch to come: an image of that shape is
        written to its row, and is then a view of it. `times` is added to.
        """


@runtime_checkable
class PartnerDataset(StagedDataset, Protocol):
    """A staged dataset whose transform may need other samples of the epoch."""

    @property
    def needs_partners(self) -> bool:
        """Whether it does; then `read` is also told ``positions``, int64 [n], and ``epoch``."""

    def drawing_from(self, sampler: Sampler) -> PartnerDataset:
        """The same data, with other samples as `sampler` places them in an epoch."""


@runtime_checkable
class ColumnDataset(StagedDataset, Protocol):
    """A staged dataset that can give a batch as a whole, where nothing is done per sample."""

    @property
    def gives_columns(self) -> bool:
        """Whether `fetch_columns` can be expected to give any."""

    def fetch_columns(
        self,
        indices: Int64Array,
        positions: Int64Array,
        epoch: int,
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """What ``fetch`` gives, a column per field: arrays [n, ...], and lists of n strings.

        None where samples must be made one by one. `allocate`: see `ColumnStorage.take`.
        """


@runtime_checkable
class StreamDataset(Protocol):
    """Items that cannot be indexed: they are read in order and numbered by position."""

    def open(self, epoch: int, start: int) -> Iterator[Any]:
        """Iterate over the epoch's raw items from position `start` on, in order.

        ``close`` of what comes back, if it has one, ends the reading.
        """

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


class ShardReader(Protocol):
    """The items of one shard, in order.

    An item is a `BadRecord`, of which one may also be the last and say what is lost behind it, or
    something small with a ``key``, of which the source's `load` makes the record.
    """

    def __next__(self) -> Any:
        """The next item; StopIteration at the shard's end."""

    def skip(self, count: int) -> int:
        """Pass over so many items; how many there were, fewer only at the shard's end."""

    def close(self) -> None:
        """Let go of files, processes and connections."""


class Source(Protocol):
    """Where a stream comes from: shards, each read from its start to its end.

    A source may have ``class_names``, a tuple of strings by label, and ``counts``, the number of
    items by shard, as far as it knows them: whoever resumes passes such shards by unopened.
    """

    @property
    def reopens(self) -> bool:
        """Whether a shard can be opened again: for another epoch, another rank, to resume."""

    def shards(self, epoch: int) -> Sequence[Any]:
        """What `open` takes, hashable, in the source's own order."""

    def open(self, shard: Any) -> ShardReader:
        """Read a shard. Trouble that is no damage of the data raises, here or while reading."""

    def load(self, item: Any) -> Record | BadRecord:
        """The record of an item, in any process."""

    def fingerprint(self) -> str:
        """Hash of what is known of the data without reading it; not of paths or times."""


@runtime_checkable
class Sampler(Protocol):
    """Which record stands at a position. Pure, without state, picklable.

    It may have the attributes ``group`` (positions that no rank may cut apart), ``same`` (an index
    column, or several, whose value a record has that replaces a bad one) and ``tail`` (``drop``,
    ``pad`` or ``keep``, whatever the loader's settings say). If it asks for ``batch_size``, it is
    told the positions of a batch over all ranks.
    """

    def __len__(self) -> int:
        """Number of positions in an epoch."""

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Record indices at positions `start` .. `stop` - 1 of `epoch`, int64 [stop - start]."""


class Collate(Protocol):
    """Puts samples together into a batch; images stay uint8 [B, H, W, C]."""

    def __call__(self, samples: list[Sample]) -> Batch: ...


class BatchTransform(Protocol):
    """Changes a whole batch where the batch is (the device); returns the batch."""

    def __call__(self, batch: Batch) -> Batch: ...


class Model(Protocol):
    """A torch module that is called with the batch."""

    def __call__(self, batch: Batch) -> Any: ...


class Task(Protocol):
    """Turns outputs and batch into losses and metrics.

    Losses are means over the rows that are valid; metrics leave invalid rows out. One whose
    outputs are to be written by ``python -m pipeline predict`` is a `PredictingTask` too.
    """

    def losses(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Scalar tensors by name, each the mean over valid rows; their sum is trained on."""

    def metrics(self) -> Any:
        """New and empty: a ``MetricCollection``, or what has its ``compute`` and ``to``."""

    def update(self, metrics: Any, outputs: Any, batch: Batch) -> None:
        """Add the valid rows of a batch to `metrics`."""


@runtime_checkable
class PredictingTask(Protocol):
    """A task whose model's outputs can be told, row by row."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, Any]:
        """Columns: each a tensor [B] or [B, n], or a list of B plain values, lists or bytes.

        Rows that are not valid are dropped by whoever asked.
        """


class Logger(Protocol):
    """Takes the figures of a run. Called on rank 0 alone."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""

    def state_dict(self) -> dict[str, Any]:
        """Where the log stands, for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Cut the log back to where it stood at the checkpoint."""

    def close(self) -> None:
        """Flush and close."""

"""Samples by position: a dataset, what it may be able to do besides, and its iterable twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from datasets.protocols.sampler import Sampler
from datasets.protocols.storage import Index
from datasets.sample import BadSample, Sample
from datasets.stage_times import StageTimes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]


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
        """What ``fetch`` gives, a column per field: arrays [n, ...], lists of n strings, `Keys`.

        None where samples must be made one by one. `allocate`: see `ColumnStorage.take`.
        One with an attribute ``gathers`` that is True also takes ``gather``, a function of
        ``positions``, ``epoch`` and the arguments of a `Gather`, which then gives images and masks.
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

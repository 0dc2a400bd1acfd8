"""Which record stands at a position of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]


@runtime_checkable
class Sampler(Protocol):
    """Which record stands at a position. Pure, without state, picklable.

    It may have the attributes ``group`` (positions that no rank may cut apart), ``same`` (an index
    column, or several, whose value a record has that replaces a bad one) and ``tail`` (``drop``,
    ``pad`` or ``keep``, whatever the loader's settings say). If it asks for ``batch_size``, it is
    told the positions of a batch over all ranks. With ``at(epoch, positions)``, records at any
    positions, int64 [n] both, it is asked for many batches at once.
    """

    def __len__(self) -> int:
        """Number of positions in an epoch."""

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Record indices at positions `start` .. `stop` - 1 of `epoch`, int64 [stop - start]."""

"""How much of batches would be padding if they were drawn at random, from the lengths alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.permutation import permute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipeline.loader.plan import BatchPlan

_MOST = 1 << 20


def random_order_padding(
    plan: BatchPlan, sampler: Any, dataset: Any, collate: Any
) -> Callable[[], float | None]:
    """What computes, when it is asked, the padding of batches drawn at random.

    Args:
        plan: Says how many rows a rank's batch has.
        sampler: One that knows lengths has an attribute `lengths`; otherwise the column
            ``length`` of the index is taken.
        dataset: With an `index`.
        collate: One that pads has a method `padded_lengths`.
    """
    start, stop = plan.share(plan.batch_size)

    def compute() -> float | None:
        padded_lengths = getattr(collate, "padded_lengths", None)
        lengths = getattr(sampler, "lengths", None)
        if lengths is None and "length" in dataset.index.columns:
            lengths = dataset.index.column("length")
        if padded_lengths is None or lengths is None or not len(lengths) or start == stop:
            return None
        return expected_padding(np.asarray(lengths), stop - start, padded_lengths)

    return compute


def expected_padding(
    lengths: NDArray[np.integer[Any]],
    rows: int,
    padded_lengths: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> float:
    """Expected share of padding in batches of `rows` records, drawn without replacement.

    The longest of the batch is the record of rank i, of N by length, with probability
    C(i - 1, rows - 1) / C(N, rows); no batch has to be drawn.

    Args:
        lengths: Length of every record, [N]; of very many a part is taken at random.
        rows: Records in a batch.
        padded_lengths: To which length batches are filled up, by their longest record's.

    Returns:
        0 to 1.
    """
    if len(lengths) > _MOST:
        lengths = lengths[permute(np.arange(_MOST), length=len(lengths), seed=0, epoch=0)]
    ordered = np.sort(lengths).astype(np.int64)
    count = len(ordered)
    rows = min(rows, count)
    # From the longest down: p(N) = rows / N, p(i - 1) = p(i) (i - rows) / (i - 1).
    places = np.arange(count, 1, -1, dtype=np.float64)
    chances = np.cumprod(np.concatenate([[rows / count], (places - rows) / (places - 1)]))
    longest = float(chances @ padded_lengths(ordered)[::-1])
    return 1 - float(ordered.mean()) / longest if longest else 0.0

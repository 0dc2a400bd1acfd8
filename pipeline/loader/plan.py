"""The batch plan: which positions each batch of each rank holds. Arithmetic, no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tail = Literal["drop", "pad", "keep"]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Positions ``0 .. num_positions - 1`` cut into batches, and batches into ranks.

    Global batch `b` has `n` positions, ``batch_size`` of them or fewer in the tail, and rank
    `r` of `W` takes ``[b*G + r*n//W, b*G + (r+1)*n//W)``, rounded to whole groups.

    Attributes:
        num_positions: Positions in an epoch, N, up to 10^12 and more.
        batch_size: Positions in a batch over all ranks, G.
        world_size: Number of ranks, W.
        rank: This rank.
        tail: What becomes of the last N % G positions: ``drop`` leaves them out; ``keep``
            makes a short batch; ``pad`` fills it up, position q repeating q mod N, invalid.
        group: Positions that no rank may cut apart.

    Raises:
        ValueError: A number is out of range, `group` does not divide `batch_size`, or ``drop``
            leaves no batch.
    """

    num_positions: int
    batch_size: int
    world_size: int = 1
    rank: int = 0
    tail: Tail = "drop"
    group: int = 1

    def __post_init__(self) -> None:
        if self.num_positions < 0:
            raise ValueError(f"batch plan: {self.num_positions} positions; needs 0 or more")
        if self.batch_size < 1:
            raise ValueError(f"batch plan: batch_size is {self.batch_size}; needs 1 or more")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"batch plan: rank {self.rank} of {self.world_size}; ranks count from 0"
            )
        if self.tail not in ("drop", "pad", "keep"):
            raise ValueError(f"batch plan: tail is {self.tail!r}; expected drop, pad or keep")
        if self.group < 1 or self.batch_size % self.group:
            lower = max(self.group, self.batch_size // max(self.group, 1) * self.group)
            raise ValueError(
                f"batch plan: batch_size {self.batch_size} cuts groups of {self.group} "
                f"positions apart; use a multiple of {self.group}, such as {lower}"
            )
        if self.tail == "drop" and self.num_positions < self.batch_size:
            raise ValueError(
                f"batch plan: 0 batches: {self.num_positions} samples are fewer than "
                f"batch_size {self.batch_size}, and drop_last leaves the rest out; lower "
                f"loader.batch_size or set loader.drop_last=false"
            )

    @property
    def num_batches(self) -> int:
        """Batches in an epoch, the same on every rank."""
        if self.tail == "drop":
            return self.num_positions // self.batch_size
        return -(-self.num_positions // self.batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def batch_length(self, number: int) -> int:
        """Positions of a global batch over all ranks, with padding."""
        if self.tail == "keep":
            return min(self.batch_size, self.num_positions - number * self.batch_size)
        return self.batch_size

    def share(self, length: int) -> tuple[int, int]:
        """Rows ``[start, stop)`` of a batch of so many that this rank takes."""
        return rank_slice(length, self.world_size, self.rank, group=self.group)

    def batch(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Positions of this rank in global batch `number`.

        Returns:
            positions int64 [n], valid bool [n]; n is at least 1, for a rank that is left
            without samples gets the batch's first position once more, marked invalid.

        Raises:
            IndexError: There is no such batch.
        """
        if not 0 <= number < self.num_batches:
            raise IndexError(f"batch {number} of an epoch of {self.num_batches} batches")
        first = number * self.batch_size
        start, stop = self.share(self.batch_length(number))
        if start == stop:
            return np.array([first % self.num_positions], np.int64), np.zeros(1, np.bool_)
        positions = np.arange(first + start, first + stop, dtype=np.int64)
        valid = positions < self.num_positions
        return positions % self.num_positions, valid

    def describe(self) -> str:
        """The sizes for people: ``batch 128 = 2 ranks x 64``."""
        if self.world_size == 1:
            return f"batch {self.batch_size}"
        shares = {
            stop - start
            for start, stop in (
                rank_slice(self.batch_size, self.world_size, rank, group=self.group)
                for rank in range(self.world_size)
            )
        }
        share = "-".join(str(size) for size in sorted({min(shares), max(shares)}))
        return f"batch {self.batch_size} = {self.world_size} ranks x {share}"


def rank_slice(length: int, world_size: int, rank: int, *, group: int = 1) -> tuple[int, int]:
    """Rows ``[start, stop)`` of a batch of `length` rows that `rank` takes.

    Cut at multiples of `group`; a group that the tail left incomplete stays whole as it is.
    """
    groups = -(-length // group)
    start = rank * groups // world_size * group
    stop = (rank + 1) * groups // world_size * group
    return min(start, length), min(stop, length)

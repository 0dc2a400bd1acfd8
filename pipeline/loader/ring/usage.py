"""What computing took, in all threads together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    """What computing took.

    Attributes:
        batches: Batches computed.
        wall_s: Seconds that threads were at them.
        cpu_s: Seconds of processor time in that; the rest is waiting for the interpreter, for
            a core or for data.
    """

    batches: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.batches + other.batches, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.batches - other.batches, self.wall_s - other.wall_s, self.cpu_s - other.cpu_s
        )

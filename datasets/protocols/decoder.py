"""What makes a sample of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from datasets.sample import Record, Sample


class Decoder(Protocol):
    """Turns a record into a sample; ValueError (one line) for a record that is damaged.

    One that passes every field on as it is has an attribute ``unchanged`` that is True. One whose
    samples are the same if their image was decoded before, whole, by its method ``decode``, has
    an attribute ``parts_are_exact`` that is True. One that can decode many records at once has a
    method ``columns``: of fields as `ColumnStorage.take` gives them it makes the columns of the
    samples, but ``index`` and ``key``, or None where one of the records is bad.
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

"""Decode nothing: for fields that a storage already holds as numbers and arrays."""

from __future__ import annotations

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, Sample


@register("decode", "raw")
def make_raw_decoder() -> RawDecoder:
    """Fields as they are stored: numbers, arrays and strings."""
    return RawDecoder()


class RawDecoder(Decoder):
    """Passes every field on as it is."""

    unchanged = True

    def __call__(self, record: Record) -> Sample:
        """Turn a record into a sample.

        Args:
            record: Any record.

        Returns:
            Its fields, and ``index`` and ``key``.
        """
        return {**record.fields, "index": record.index, "key": record.key}

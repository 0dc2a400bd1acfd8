"""No decoding: for fields that a storage already holds as numbers and arrays."""

from __future__ import annotations

from datasets.sample import Record, Sample
from pipeline.registry import register


@register("decode", "raw")
def make_raw_decoder() -> RawDecoder:
    """Fields as they are stored: numbers, arrays and strings."""
    return RawDecoder()


class RawDecoder:
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

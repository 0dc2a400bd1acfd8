"""Pass stored numbers and arrays on without decoding."""

from __future__ import annotations

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, Sample


@register("decode", "raw")
class RawDecoder(Decoder):
    """Pass fields on as they are stored: numbers, arrays and strings."""

    unchanged = True

    def __call__(self, record: Record) -> Sample:
        """Return a record's fields, ``index`` and ``key``."""
        return {**record.fields, "index": record.index, "key": record.key}

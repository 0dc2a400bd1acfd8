"""A source of a mix: what may be one, and how messages speak of it."""

from __future__ import annotations

import re
from typing import Any

from datasets.protocols import StreamDataset


def check_source(name: str, source: Any) -> None:
    """Refuse what has no place in a mix.

    Raises:
        ValueError: It has none; the message says why.
    """
    key = f"dataset.sources.{name}"
    if isinstance(source, StreamDataset):
        raise ValueError(
            f"dataset mix: {name!r} is a stream, which is read in its own order, and a mix draws "
            f"by index; give {key}.dataset records that can be indexed, such as webdataset for "
            f"shards"
        )
    if getattr(source, "collate", None) is not None:
        raise ValueError(
            f"dataset mix: {name!r} puts its batches together by a collate_fn of its own, and "
            f"these are of several sources; set {key}.dataset.collate_fn=null, and collate=..."
        )
    if getattr(source, "table", None) is not None:
        raise ValueError(
            f"dataset mix: {name!r} decodes a table by figures of its own training part, and the "
            f"sources' columns would not be comparable; put the rows into one table"
        )


def with_keys_of_source(text: str, name: str) -> str:
    """A message about a data set alone, with the keys that it has as a source of a mix."""
    at = f"dataset.sources.{name}"
    text = re.sub(r"(?<![\w./-])dataset/(?=\w+=)", f"{at}.dataset.", text)
    return re.sub(r"(?<![\w./-])(dataset|sampler)(?=\.(?!sources\.)\w|=)", rf"{at}.\1", text)

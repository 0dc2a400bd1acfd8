"""Contract of sources that can be read again."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from penstock.core.contracts import Source
from penstock.core.sample import BadRecord


def loaded(source: Source, shard: Any, start: int = 0) -> list[Any]:
    """Return the records of a shard, and close it."""
    items = source.read(shard, start)
    found = [item if isinstance(item, BadRecord) else source.load(item) for item in items]
    items.close()
    return found


def check_source(make: Callable[[], Source], keys: list[str]) -> None:
    """Check that a source gives the records `keys`, equally in any copy, epoch and place."""
    source = make()
    assert isinstance(source, Source) and source.reopens
    shards = [*source.shards(0)]
    assert len({*shards}) == len(shards), "hashable, each once"
    whole = {shard: loaded(source, shard) for shard in shards}
    assert sorted(r.key for records in whole.values() for r in records) == sorted(keys)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == make().fingerprint() == source.fingerprint()
    for shard, records in whole.items():
        assert [r.key for r in loaded(copy, shard)] == [r.key for r in records]
        items = source.read(shard, 0)
        next(items, None)
        items.close()  # in the middle
        assert next(items, None) is None
        count = source.count(shard)
        assert count in (None, len(records))
        for start in range(len(records) + 1) if count is not None else ():
            rest = loaded(source, shard, start)
            assert [r.key for r in rest] == [r.key for r in records[start:]]

"""Configs of the sources of a mix."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.datasets.mix import with_keys_of_source

MIX = "dataset/mix"
_RANDOM = {"_target_": "sampler/random"}


def sources_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configs of a mix's sources by name, each with its own seed.

    With one seed, two sources of equal size would be shuffled alike.
    """
    node = config["dataset"]
    if node["_target_"] != MIX:
        return {}
    return {
        name: {
            **config,
            "dataset": source["dataset"],
            "sampler": source.get("sampler") or _RANDOM,
            "seed": _seed_of(config["seed"], name),
        }
        for name, source in node["sources"].items()
        if source
    }


@contextmanager
def said_of_source(name: str) -> Iterator[None]:
    """Add a source's name and full keys to its ValueError."""
    try:
        yield
    except ValueError as error:
        text = f"source {name!r}: {with_keys_of_source(str(error), name)}"
        raise ValueError(text) from error


def _seed_of(seed: int, name: str) -> int:
    """Derive a seed for a source, 0 .. 2^63 - 1, from its name."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

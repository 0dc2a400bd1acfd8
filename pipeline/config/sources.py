"""The sources of a mix: each is the config that it would be alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from datasets.mix_source import with_keys_of_source

MIX = "dataset/mix"
_RANDOM = {"_target_": "sampler/random"}


def sources_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Configs of the sources by name, each with a seed of its own; none where there is no mix.

    Two sources of equal size would otherwise be shuffled in the same way.
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
    """Let what is wrong with a source be said with its name, and with its own keys.

    Raises:
        ValueError: What came up within.
    """
    try:
        yield
    except ValueError as error:
        text = f"source {name!r}: {with_keys_of_source(str(error), name)}"
        raise ValueError(text) from error


def _seed_of(seed: int, name: str) -> int:
    """A seed, 0 .. 2^63 - 1, that the other sources have not, however many there are."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

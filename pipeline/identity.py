"""What of a config decides the batches: compared when a run is gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.places import TARGETS
from pipeline.config.sources import sources_of

Config = Mapping[str, Any]

# What a dataset's node says about where samples are held and which there are: the first changes
# no pixel, the second is in the data's fingerprint.
_NOT_PIXELS = frozenset(
    {
        "_target_",
        "storage",
        "source",
        "cache",
        "annotations",
        "val_fraction",
        "worker_init_fn",
    }
)


def identity_of(config: Config, split: str, sampler: Any) -> dict[str, Any]:
    """The order of the records, and what is done with them, in plain values.

    Args:
        config: A checked config.
        split: ``train`` or ``val``.
        sampler: The sampler of the split, or None.

    Returns:
        ``sampler``, with the sources of a mix and without what the data's fingerprint or the
        sampler's stands for, and ``pixels``.
    """
    augment, sources = config["augment"], sources_of(config)
    order = {**config["sampler"]}
    decode: dict[str, Any] = _decoding(config["dataset"])
    if sources:
        sampler_of = getattr(sampler, "sampler_of", lambda name: None)
        order["length"] = config["dataset"]["length"]
        order["sources"] = {
            name: {
                "weight": config["dataset"]["sources"][name]["weight"],
                "sampler": _order(source["sampler"], sampler_of(name)),
            }
            for name, source in sources.items()
        }
        decode = {name: _decoding(source["dataset"]) for name, source in sources.items()}
    return {
        "sampler": _order(order, sampler),
        "pixels": {
            "decode": decode,
            "augment": augment["train" if split == "train" else "eval"],
            **{name: augment[name] for name in TARGETS if augment.get(name)},
            "collate": config["collate"],
        },
    }


def _decoding(dataset: Config) -> dict[str, Any]:
    return {name: value for name, value in dataset.items() if name not in _NOT_PIXELS}


def _order(node: Config, sampler: Any) -> dict[str, Any]:
    by_content = getattr(sampler, "by_content", ())
    return {name: value for name, value in node.items() if name not in by_content}

"""Count the texts that the augmentation will cut, before training begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import StreamDataset
from penstock.pipeline.config.places import sources_of
from penstock.transforms.cpu.stack import ordered_steps

_LENGTH = "length"


def describe_cuts(config: Mapping[str, Any], split: str, dataset: Any) -> str:
    """Describe what ``token_crop`` cuts from the records of a split.

    Args:
        config: A checked config.
        split: ``train``, ``val`` or ``test``.
        dataset: The samples of the split.

    Returns:
        The number of texts and tokens that an epoch over all records loses. An empty text if
        there are none, or where lengths are not known in advance: the index has no column
        ``length``, or another step comes before the crop.
    """
    augment = config["augment"]["train" if split == "train" else "eval"]
    first = next(iter(ordered_steps(augment or {}).values()), None)
    if first is None or first["_target_"] != "transform/token_crop":
        return ""
    most = first["max_length"]
    texts = cut_texts = tokens = cut_tokens = 0
    for lengths in _lengths(config, dataset):
        excess = np.maximum(lengths.astype(np.int64) - most, 0)
        texts, tokens = texts + lengths.size, tokens + int(lengths.sum())
        cut_texts += int(np.count_nonzero(excess))
        cut_tokens += int(excess.sum())
    if not cut_tokens:
        return ""
    return (
        f"{split}: {cut_texts:,} of {texts:,} texts are longer than {most:,} tokens and lose "
        f"{cut_tokens:,} of {tokens:,} tokens ({cut_tokens / tokens:.1%})"
    )


def _lengths(config: Mapping[str, Any], dataset: Any) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the lengths of the records, of each source of a mix."""
    if sources := sources_of(config):
        for name, part in sources.items():
            yield from _lengths(part, dataset.sources[name])
        return
    if isinstance(dataset, StreamDataset) or _LENGTH not in dataset.index.columns:
        return
    lengths = np.asarray(dataset.index.column(_LENGTH))
    if lengths.dtype.kind in "iu":
        yield lengths

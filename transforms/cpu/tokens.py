"""Crop sequences of a sample, or mask or drop random elements."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.sample import CUT_TOKENS, Sample


@register("transform", "token_crop")
def token_crop(
    sample: Sample,
    rng: np.random.Generator,
    *,
    max_length: Annotated[int, Ge(1)],
    fields: list[str] | None = None,
    random: bool = True,
) -> Sample:
    """Crop sequences to a maximum length, at the same place for all fields.

    Args:
        sample: With the fields, arrays [T, ...] of one length.
        rng: Draws the start of the kept part.
        max_length: Maximum length; shorter sequences stay as they are.
        fields: Names of the sequences; None: ``tokens``.
        random: Keep a random part, or the first part, as for evaluation.

    Returns:
        The sample. A shortened sample also counts its cut elements; see `CUT_TOKENS`.

    Raises:
        ValueError: A field is missing, or the lengths differ.
    """
    names = ["tokens"] if fields is None else fields
    lengths = {name: len(_sequence(sample, name, "token_crop", "fields")) for name in names}
    length = next(iter(lengths.values()), 0)
    if any(other != length for other in lengths.values()):
        raise ValueError(f"token_crop: sequences of one sample differ in length: {lengths}")
    # Draw always, so that draws of later steps do not depend on the length.
    place = float(rng.random())
    if length <= max_length:
        return sample
    start = int(place * (length - max_length + 1)) if random else 0
    kept = {name: sample[name][start : start + max_length] for name in names}
    cut_tokens = sample.get(CUT_TOKENS, 0) + length - max_length
    return {**sample, **kept, CUT_TOKENS: cut_tokens}


Share = Annotated[float, Ge(0), Le(1)]


@register("transform", "token_mask")
def token_mask(
    sample: Sample,
    rng: np.random.Generator,
    *,
    p: Share = 0.1,
    value: int = 0,
    field: str = "tokens",
) -> Sample:
    """Replace random elements of a sequence by a value.

    Args:
        sample: With the field, an array [T, ...].
        rng: Draws for each element.
        p: Probability that an element is replaced.
        value: The replacement: the mask token, or 0 for features.
        field: The sequence.

    Raises:
        ValueError: The field is missing.
    """
    values = _sequence(sample, field, "token_mask")
    hidden = values.copy()
    hidden[rng.random(len(values)) < p] = value
    return {**sample, field: hidden}


@register("transform", "token_dropout")
def token_dropout(
    sample: Sample, rng: np.random.Generator, *, p: Share = 0.1, field: str = "tokens"
) -> Sample:
    """Drop random elements of a sequence, but keep at least one.

    Args:
        sample: With the field, an array [T, ...].
        rng: Draws for each element.
        p: Probability that an element is dropped.
        field: The sequence.

    Raises:
        ValueError: The field is missing.
    """
    values = _sequence(sample, field, "token_dropout")
    draws = rng.random(len(values))
    kept = draws >= p
    if len(values) and not kept.any():
        kept[draws.argmax()] = True
    return {**sample, field: values[kept]}


def _sequence(sample: Sample, field: str, step: str, argument: str = "field") -> Any:
    values = sample.get(field)
    if getattr(values, "ndim", 0) < 1:  # an array or a tensor
        raise ValueError(
            f"{step}: {field!r} given, expected an array among {', '.join(sample)}; name the "
            f"sequence with {argument}"
        )
    return values

"""Cut sequences of a sample to a length, hide or leave out single elements by chance."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from penstock.core.registry import register
from penstock.core.sample import Sample


@register("transform", "token_crop")
def token_crop(
    sample: Sample,
    rng: np.random.Generator,
    *,
    max_length: Annotated[int, Ge(1)],
    fields: list[str] | None = None,
    random: bool = True,
) -> Sample:
    """Cut sequences to a length; several fields, element by element alike.

    Args:
        sample: With the fields, arrays [T, ...] of one length.
        rng: Where the place of the part is drawn from.
        max_length: The most elements that are left.
        fields: The sequences; None: ``tokens``.
        random: The part may lie anywhere; otherwise it is the first one, as for evaluation.

    Returns:
        The sample; arrays that are short enough are left as they are.

    Raises:
        ValueError: A field is missing, or the lengths differ.
    """
    names = ["tokens"] if fields is None else fields
    lengths = {name: len(_sequence(sample, name, "token_crop", "fields")) for name in names}
    length = next(iter(lengths.values()), 0)
    if any(other != length for other in lengths.values()):
        raise ValueError(f"token_crop: sequences of one sample differ in length: {lengths}")
    # Drawn in any case, so that what follows has the same draws whatever the length.
    place = float(rng.random())
    if length <= max_length:
        return sample
    start = int(place * (length - max_length + 1)) if random else 0
    return {**sample, **{name: sample[name][start : start + max_length] for name in names}}


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
    """Replace each element of a sequence by a value with some probability.

    Args:
        sample: With the field, an array [T, ...].
        rng: Where it is drawn from, element by element.
        p: The probability.
        value: What stands in its place: the mask token, or 0 for features.
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
    """Leave out each element of a sequence with some probability; one at least stays.

    Args:
        sample: With the field, an array [T, ...].
        rng: Where it is drawn from, element by element.
        p: The probability.
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
            f"{step}: {field!r} is no array of the sample; it has {', '.join(sample)}; name the "
            f"sequence with {argument}"
        )
    return values

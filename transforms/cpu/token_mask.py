"""Single tokens that are hidden, or left out, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from datasets.sample import Sample
from pipeline.registry import register

if TYPE_CHECKING:
    import numpy as np

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


def _sequence(sample: Sample, field: str, step: str) -> Any:
    values = sample.get(field)
    if getattr(values, "ndim", 0) < 1:
        raise ValueError(
            f"{step}: {field!r} is no array of the sample; it has {', '.join(sample)}; name the "
            f"sequence with field"
        )
    return values

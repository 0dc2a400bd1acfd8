"""A random part of sequences that are too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from datasets.sample import Sample
from pipeline.registry import register

if TYPE_CHECKING:
    import numpy as np


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
    for name in names:
        if getattr(sample.get(name), "ndim", 0) < 1:
            raise ValueError(
                f"token_crop: {name!r} is no array of the sample; it has {', '.join(sample)}; "
                f"name the sequences with fields"
            )
    lengths = {name: len(sample[name]) for name in names}
    length = next(iter(lengths.values()), 0)
    if any(other != length for other in lengths.values()):
        raise ValueError(f"token_crop: sequences of one sample differ in length: {lengths}")
    # Drawn in any case, so that what follows has the same draws whatever the length.
    place = float(rng.random())
    if length <= max_length:
        return sample
    start = int(place * (length - max_length + 1)) if random else 0
    return {**sample, **{name: sample[name][start : start + max_length] for name in names}}

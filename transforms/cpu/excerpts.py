"""Crop arrays, audio and sequences, and mask elements of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.core.contracts import Transform
from penstock.core.registry import register
from penstock.core.sample import CUT_TOKENS, Sample
from penstock.transforms.amounts import Positive, Share, Side
from penstock.transforms.decode.audio import PendingClip


@register("transform", "array_crop")
@dataclass(kw_only=True, eq=False)
class ArrayCrop:
    """Crop arrays at a random place, the same for all fields of a sample.

    The result is a view, so a mapped file is read only where it is cropped.

    Args:
        size: Length of each axis; null keeps an axis whole. Axes after these stay whole.
        fields: The fields to crop; their first axes must be equally long.
        place: ``random``, or ``centre`` for evaluation.
    """

    size: Sequence[Side | None]
    fields: Sequence[str] = ("array",)
    place: Literal["random", "centre"] = "random"

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Crop the fields of a sample; raise ValueError if one is missing or too short."""
        arrays = {field: _array(sample, field, "array_crop", "fields") for field in self.fields}
        shapes = {array.shape[: len(self.size)] for array in arrays.values()}
        (shape, *others) = shapes
        fits = len(shape) == len(self.size)
        if others or not fits or any(n and n > s for n, s in zip(self.size, shape, strict=True)):
            raise ValueError(
                f"array_crop: {', '.join(arrays)} have the shapes {sorted(map(list, shapes))}, "
                f"expected one shape of at least {list(self.size)}; set size or fields"
            )
        part = []
        for length, whole in zip(self.size, shape, strict=True):
            room = 0 if length is None else whole - length
            drawn = length is not None and self.place == "random"
            start = int(rng.integers(room + 1)) if drawn else room // 2
            part.append(slice(start, start + (length or whole)))
        return {**sample, **{field: array[tuple(part)] for field, array in arrays.items()}}


@register("transform", "audio_crop")
@dataclass(kw_only=True, eq=False)
class AudioCrop(Transform):
    """Crop audio to an excerpt at a random place; pad shorter clips with silence at the end.

    Args:
        seconds: Length of the excerpt.
        sample_rate: Sample rate of the clips, in hertz.
        place: ``random``, or ``centre`` for evaluation.
    """

    crops_first = True

    seconds: Positive
    sample_rate: int = 16_000
    place: Literal["random", "centre"] = "random"

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Crop ``audio``, float32 [T] or a `PendingClip`, with one draw."""
        clip = sample.get("audio")
        if not isinstance(clip, PendingClip | np.ndarray):
            raise ValueError(
                f"audio_crop: no audio, fields: {', '.join(sample)}; type dataset/decode=audio"
            )
        wanted = max(1, round(self.seconds * self.sample_rate))
        room = max(0, len(clip) - wanted)
        start = int(rng.integers(room + 1)) if self.place == "random" else room // 2
        length = min(wanted, len(clip))
        if isinstance(clip, PendingClip):
            excerpt = clip.excerpt(start, length)
        else:
            excerpt = clip[start : start + length]
        silence = [(0, wanted - length), *[(0, 0)] * (excerpt.ndim - 1)]
        return {**sample, "audio": np.pad(excerpt, silence)}


@register("transform", "token_crop")
@dataclass(kw_only=True, eq=False)
class TokenCrop:
    """Crop sequences, arrays [T, ...] of one length, and count cut elements in `CUT_TOKENS`.

    Args:
        max_length: Maximum length; shorter sequences stay as they are.
        fields: Names of the sequences.
        random: Keep a random part, or the first part, as for evaluation.
    """

    max_length: Side
    fields: Sequence[str] = ("tokens",)
    random: bool = True

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Crop the fields at one place; raise ValueError if one is missing or lengths differ."""
        lengths = {n: len(_array(sample, n, "token_crop", "fields")) for n in self.fields}
        length = next(iter(lengths.values()), 0)
        if any(other != length for other in lengths.values()):
            raise ValueError(f"token_crop: sequences of one sample differ in length: {lengths}")
        # Draw always, so that draws of later steps do not depend on the length.
        place = float(rng.random())
        if length <= self.max_length:
            return sample
        start = int(place * (length - self.max_length + 1)) if self.random else 0
        kept = {name: sample[name][start : start + self.max_length] for name in self.fields}
        cut_tokens = sample.get(CUT_TOKENS, 0) + length - self.max_length
        return {**sample, **kept, CUT_TOKENS: cut_tokens}


@register("transform", "token_mask")
@dataclass(kw_only=True, eq=False)
class TokenMask:
    """Replace random elements of a sequence by a value.

    Args:
        p: Probability that an element is replaced.
        value: The replacement: the mask token, or 0 for features.
        field: The sequence, an array [T, ...].
    """

    p: Share = 0.1
    value: int = 0
    field: str = "tokens"

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Mask the field; raise ValueError if it is missing."""
        values = _array(sample, self.field, "token_mask", "field")
        hidden = values.copy()
        hidden[rng.random(len(values)) < self.p] = self.value
        return {**sample, self.field: hidden}


def _array(sample: Sample, field: str, step: str, argument: str) -> Any:
    values = sample.get(field)
    if getattr(values, "ndim", 0) < 1:  # an array or a tensor
        raise ValueError(
            f"{step}: {argument}={field!r}, expected an array among {', '.join(sample)}"
        )
    return values

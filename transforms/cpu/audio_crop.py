"""Crop audio to excerpts of one length, and decode only the excerpt."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from penstock.core.contracts import TransformCapabilities
from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.decode.audio import PendingClip


@register("transform", "audio_crop")
class AudioCrop:
    """Crop audio to an excerpt at a random place; pad shorter clips with silence at the end.

    Args:
        seconds: Length of the excerpt.
        sample_rate: Sample rate of the clips, in hertz.
        place: ``random``, or ``centre`` for evaluation.
    """

    capabilities = TransformCapabilities(crops_first=True)

    def __init__(
        self,
        *,
        seconds: Annotated[float, Gt(0)],
        sample_rate: int = 16_000,
        place: Literal["random", "centre"] = "random",
    ) -> None:
        self.length = max(1, round(seconds * sample_rate))
        self.place = place

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Crop ``audio``, float32 [T] or a `PendingClip`, with one draw."""
        clip = sample.get("audio")
        if not isinstance(clip, PendingClip | np.ndarray):
            raise ValueError(
                f"transform/audio_crop: no audio, fields: {', '.join(sample)}; type "
                f"dataset/decode=audio"
            )
        room = max(0, len(clip) - self.length)
        start = int(rng.integers(room + 1)) if self.place == "random" else room // 2
        length = min(self.length, len(clip))
        if isinstance(clip, PendingClip):
            excerpt = clip.excerpt(start, length)
        else:
            excerpt = clip[start : start + length]
        return {**sample, "audio": np.pad(excerpt, (0, self.length - length))}

"""Change the colours of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.registry import register
from penstock.core.sample import Sample
from penstock.transforms.colours import ColourAmounts, recoloured
from penstock.transforms.cpu.targets import image_of


@register("transform", "color_jitter")
@dataclass(kw_only=True, eq=False)
class ColorJitter(ColourAmounts):
    """Change brightness, contrast, saturation and hue of an image at random.

    The changes are those of `batch_transform/color_jitter`. Grey images keep their hue and
    saturation, and alpha stays as it is.
    """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Change ``image``, uint8 [H, W, 1], [H, W, 3] or [H, W, 4]."""
        draws = rng.random(5)
        if draws[0] >= self.p:
            return sample
        image = image_of(sample)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3, 4):
            raise ValueError(
                f"color_jitter: {image.dtype} {list(image.shape)}, expected uint8 [H, W, 1, 3 or 4]"
            )
        [of_pixel], [of_mean] = self.maps(draws[1:, None])
        colours = recoloured(image[..., :3], of_pixel, of_mean)
        if image.shape[2] == 4:
            colours = np.concatenate([colours, image[..., 3:]], 2)
        return {**sample, "image": colours}

"""Decode image files to pixels, for `decode=image`: JPEG by TurboJPEG, others by Pillow."""

from penstock.transforms.decode.image.decoder import ImageDecoder

__all__ = ["ImageDecoder"]

"""Decode image files to pixels, for `decode=image` and `decode=scaled`.

From the top: the decoder of records, files of any format, JPEG by TurboJPEG, others by Pillow.
"""

from penstock.transforms.decode.image.decoder import ImageDecoder

__all__ = ["ImageDecoder"]

"""Image files to pixels: what `decode=image` is made of, which `decode=scaled` builds upon.

From the top: the decoder of records, files of any format, JPEG by TurboJPEG, others by Pillow.
"""

from penstock.transforms.decode.image.decoder import ImageDecoder

__all__ = ["ImageDecoder"]

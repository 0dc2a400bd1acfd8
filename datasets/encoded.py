"""What is said where pixels are needed and there is an image's file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datasets.sample import Batch


def on_pixels(transform: Callable[[Batch], Batch], batch: Batch) -> Batch:
    """What a batch transform gives, or why it cannot where images are files.

    Raises:
        ValueError: The images are bytes.
        Exception: Whatever else the transform raises.
    """
    try:
        return transform(batch)
    except (TypeError, AttributeError):
        refuse_encoded(batch.get("image"))
        raise


def refuse_encoded(image: Any) -> None:
    """Refuse the bytes of a file, or a batch's list of them, in the place of pixels.

    Raises:
        ValueError: These are bytes.
    """
    one = image[0] if isinstance(image, list) and image else image
    if isinstance(one, bytes | bytearray | memoryview):
        raise ValueError(
            f"'image' is a file's {memoryview(one).nbytes:,} bytes, expected pixels; decode "
            f"it with dataset/decode=image"
        )

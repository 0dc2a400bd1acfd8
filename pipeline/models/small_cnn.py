"""A small convolutional classifier for images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.small_cnn import SmallCnn


@register("model", "small_cnn")
def small_cnn(*, num_classes: int | None, width: int = 24, dropout: float = 0.0) -> SmallCnn:
    """A small convolutional classifier for images of any size.

    Args:
        num_classes: Classes of the data.
        width: Channels of the first stage; the others have 2, 4 and 4 times as many.
        dropout: Share of the pooled features that is dropped in training.

    Raises:
        ValueError: The data has no classes.
    """
    from pipeline.networks.small_cnn import SmallCnn

    if not num_classes:
        raise ValueError(
            "model small_cnn classifies, and the data has no classes; set dataset.storage.labels "
            "(of tables dataset.storage.label_column, of streams dataset.source.classes, with "
            "dataset=torch dataset.classes=10, or their names), or choose another model"
        )
    return SmallCnn(num_classes=num_classes, width=width, dropout=dropout)

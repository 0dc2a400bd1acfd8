"""A small convolutional classifier for sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.sequence_cnn import SequenceCnn


@register("model", "sequence_cnn")
def sequence_cnn(
    *,
    num_classes: int | None,
    num_tokens: Annotated[int, Ge(1)] = 256,
    field: str = "tokens",
    num_features: Annotated[int, Ge(1)] | None = None,
    width: Annotated[int, Ge(1)] = 64,
) -> SequenceCnn:
    """A small convolutional classifier for sequences of tokens or features, with their mask.

    Args:
        num_classes: Classes of the data.
        num_tokens: Tokens are 0 to this less one.
        field: The sequence in the batch, padded by ``collate=pad``.
        num_features: Features of each element, where it is one of arrays [T, features]; None:
            it is one of tokens.
        width: Channels.

    Raises:
        ValueError: The data has no classes.
    """
    from pipeline.networks.sequence_cnn import SequenceCnn

    if not num_classes:
        raise ValueError(
            "model sequence_cnn classifies, and the data has no classes; set "
            "dataset.storage.label_column, or choose another model"
        )
    return SequenceCnn(
        num_classes=num_classes,
        num_tokens=num_tokens,
        field=field,
        num_features=num_features,
        width=width,
    )

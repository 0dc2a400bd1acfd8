"""A small network for metric learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.embedder import Embedder


@register("model", "embedder")
def embedder(
    *,
    num_classes: int | None,
    width: int = 24,
    features: Annotated[int, Ge(1)] = 64,
    classifier: bool = True,
) -> Embedder:
    """A small network that gives images of any size features of length 1.

    Args:
        num_classes: Identities of the training data.
        width: Channels of the first stage; the others have 2, 4 and 4 times as many.
        features: Numbers in a feature vector.
        classifier: Also score the identities of the training data, for a cross-entropy.
    """
    from pipeline.networks.embedder import Embedder

    classes = num_classes or 0 if classifier else 0
    return Embedder(num_classes=classes, width=width, features=features)

"""A small network for rows of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Lt

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.table_net import TableNet


@register("model", "table_net")
def table_net(
    *,
    num_classes: int | None,
    table: Any,
    width: Annotated[int, Ge(1)] = 64,
    depth: Annotated[int, Ge(0)] = 3,
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1,
) -> TableNet:
    """Embeddings and residual layers for rows of tables: classes, or one number.

    Args:
        num_classes: Classes of the data; none: one number is predicted.
        table: What `dataset/decode=table` knows of the columns.
        width: Channels.
        depth: Residual blocks.
        dropout: Share of a block's channels that is dropped in training.

    Raises:
        ValueError: The data is no table.
    """
    from pipeline.networks.table_net import TableNet

    if table is None:
        raise ValueError(
            "model table_net takes rows of a table; choose dataset=csv or parquet with "
            "dataset/decode=table, or another model"
        )
    return TableNet(
        num_features=table.num_features,
        num_categories=table.num_categories,
        num_outputs=num_classes or 1,
        width=width,
        depth=depth,
        dropout=dropout,
    )

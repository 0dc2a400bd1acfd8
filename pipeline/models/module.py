"""Any torch module as a model: it is fed one field of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.fed_module import FedModule


@register("model", "module")
def module(*, module: Any, input: str = "image") -> FedModule:  # noqa: A002 (the config's word)
    """Any torch module, called with one field of the batch.

    Args:
        module: The module, a node with a ``_target_`` of its own.
        input: The batch's field that it is called with.
    """
    from pipeline.networks.fed_module import FedModule

    return FedModule(module, input)

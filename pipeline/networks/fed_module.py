"""A module that is called with a batch and feeds one field of it to another."""

from __future__ import annotations

from typing import Any

from torch import nn

from datasets.sample import Batch


class FedModule(nn.Module):
    """Calls `module` with ``batch[field]``.

    Args:
        module: Any torch module with one input.
        field: The batch's field that it is called with.
    """

    def __init__(self, module: nn.Module, field: str) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"model module: model.module is a {type(module).__name__}, expected a torch "
                f"module; give model.module._target_ (for example torch.nn.Linear)"
            )
        self.module = module
        self.field = field

    def forward(self, batch: Batch) -> Any:
        """Outputs of the module for the batch's field."""
        if self.field not in batch:
            raise ValueError(
                f"model.input is {self.field!r}, the batch has {', '.join(sorted(batch))}; "
                f"set model.input to one of these"
            )
        return self.module(batch[self.field])

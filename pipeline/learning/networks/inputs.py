"""Feed a module with what it takes of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from penstock.core.sample import Batch, require_pixels
from penstock.core.user_errors import is_trouble


def image_of(batch: Batch) -> torch.Tensor:
    """The batch's images, float [B, 3, H, W]; bytes [B, H, W, 3] are turned into 0..1.

    Raises:
        ValueError: They were not decoded, or there are none.
    """
    if "image" not in batch:
        raise ValueError(
            f"the model takes images, and the batch has {', '.join(sorted(batch))}; take a model "
            f"for these (model=sequence_cnn for tokens, model=table_net for rows of a table)"
        )
    image: torch.Tensor = batch["image"]
    require_pixels(image)
    return image.permute(0, 3, 1, 2).float() / 255 if image.dtype == torch.uint8 else image


_IMAGES = ("x", "input", "inputs", "image", "images", "img", "imgs", "pixel_values")


class FedModule(nn.Module):
    """Calls `module` with ``batch[field]``.

    Args:
        module: Any torch module with one input.
        field: The batch's field that it is called with.
        what: What it is called in messages.
        remedy: What to do where it cannot take its input.
    """

    def __init__(
        self,
        module: nn.Module,
        field: str,
        *,
        what: str = "model.module",
        remedy: str = "correct its arguments, or set model.input",
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"model module: model.module is a {type(module).__name__}, expected a torch "
                f"module; give model.module._target_ (for example torch.nn.Linear)"
            )
        self.module = module
        self.field = field
        self._what = what
        self._remedy = remedy

    def forward(self, batch: Batch) -> Any:
        """Outputs of the module for the batch's field."""
        if self.field not in batch:
            raise ValueError(
                f"model.input is {self.field!r}, the batch has {', '.join(sorted(batch))}; "
                f"set model.input to one of these"
            )
        value = batch[self.field]
        with refusing(self.module, self.field, value, what=self._what, remedy=self._remedy):
            return self.module(value)


_LIBRARIES = ("torch.", "torchvision.", "timm.", "segmentation_models_pytorch.", "transformers.")


@contextmanager
def refusing(
    module: nn.Module, field: str, value: Any, *, what: str, remedy: str
) -> Iterator[None]:
    """Say in one line that a library's module cannot take what the batch has.

    Args:
        module: What is called inside; the traceback of a user's own is of use, and stays.
        field: The batch's field that it is called with.
        value: The field.
        what: What it is called in messages.
        remedy: What to do then.
    """
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        if not type(module).__module__.startswith(_LIBRARIES) or is_trouble(error):
            raise
        shape = f" {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{what}: {type(module).__name__} cannot take {field!r}{shape}: {said}; {remedy}"
        ) from error


def taking_batches(model: nn.Module) -> nn.Module:
    """Feed a model with the batch's images if its `forward` takes images, by what it calls them."""
    first = next(iter(inspect.signature(model.forward).parameters), "")
    return FedModule(model, "image") if first in _IMAGES else model

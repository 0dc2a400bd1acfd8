"""A batch as bytes in a slot: where each tensor lies, and tensors that view the slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64  # bytes; a cache line, and enough for every type and vector unit


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor that lies in a slot.

    Attributes:
        offset: Bytes from the start of the slot.
        dtype: The tensor's type.
        shape: The tensor's shape.
        stride: Strides in elements where they are not those of a contiguous tensor.
    """

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


class Parcel:
    """A value whose tensors are about to be written into a slot.

    Args:
        value: A batch, or anything in it. Plain tensors in dicts, lists and tuples go into the
            slot; everything else is left to be pickled.

    Attributes:
        packed: The value with a `Placed` for every such tensor.
        size_bytes: What the tensors need.
    """

    def __init__(self, value: Any) -> None:
        self._tensors: list[tuple[Placed, torch.Tensor]] = []
        self.size_bytes = 0
        self.packed = _mapped(value, self._place)

    def _place(self, value: Any) -> Any:
        import torch

        if type(value) is not torch.Tensor or value.requires_grad or not value.numel():
            return value
        if value.device.type != "cpu" or value.layout is not torch.strided:
            return value
        if value.is_quantized or value.is_conj() or value.is_neg():
            return value
        stride = None
        if not value.is_contiguous():
            if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
                stride = value.stride()
            else:
                value = value.contiguous()
        placed = Placed(self.size_bytes, value.dtype, tuple(value.shape), stride)
        self._tensors.append((placed, value))
        self.size_bytes += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        return placed

    def write(self, memory: Any) -> None:
        """Copy the tensors into a slot's memory, a writable buffer of `size_bytes` or more."""
        for placed, tensor in self._tensors:
            _view(placed, memory).copy_(tensor)


def unpack(packed: Any, memory: Any) -> Any:
    """The value again, its tensors views of `memory`, which lives as long as one of them."""
    return _mapped(
        packed, lambda value: _view(value, memory) if isinstance(value, Placed) else value
    )


def _view(placed: Placed, memory: Any) -> torch.Tensor:
    import torch

    count = 1
    for length in placed.shape:
        count *= length
    flat = torch.frombuffer(memory, dtype=placed.dtype, count=count, offset=placed.offset)
    if placed.stride is None:
        return flat.view(placed.shape)
    return flat.as_strided(placed.shape, placed.stride)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of every leaf of plain dicts, lists and tuples."""
    if type(value) is dict:
        return {key: _mapped(item, function) for key, item in value.items()}
    if type(value) is list:
        # The usual list is one of keys, and there are many of them.
        if value and all(type(item) is str for item in value):
            return value
        return [_mapped(item, function) for item in value]
    if type(value) is tuple:
        return tuple(_mapped(item, function) for item in value)
    return function(value)

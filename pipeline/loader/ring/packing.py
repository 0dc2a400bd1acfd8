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
        address: Where the slot begins in this process; 0 if nothing lies there.
        filled_bytes: Bytes from there on that tensors of the value may lie in already. Those
            stay where they are, and the others come behind.

    Attributes:
        packed: The value with a `Placed` for every such tensor.
        size_bytes: What the tensors need.
    """

    def __init__(self, value: Any, *, address: int = 0, filled_bytes: int = 0) -> None:
        self._address = address
        self._filled_bytes = filled_bytes
        self._tensors: list[tuple[Placed, torch.Tensor]] = []
        self.size_bytes = 0
        # Two rounds: only if a tensor is there must the others spare the place.
        there = mapped(value, self._stay)
        self.packed = mapped(there, self._place)

    def _stay(self, value: Any) -> Any:
        """The value, or its place if it lies in the slot."""
        if not _is_plain(value):
            return value
        start = value.data_ptr() - self._address
        stride = _dense_stride(value)
        fits = 0 <= start <= self._filled_bytes - value.nbytes
        if not fits or stride is _NOT_DENSE:
            return value
        if start % value.itemsize:
            return value.clone()  # the others may come to lie over it
        self.size_bytes = _aligned(self._filled_bytes)
        return Placed(start, value.dtype, tuple(value.shape), stride)

    def _place(self, value: Any) -> Any:
        """The value, or its place if it is copied into the slot."""
        if not _is_plain(value):
            return value
        stride = _dense_stride(value)
        if stride is _NOT_DENSE:
            value, stride = value.contiguous(), None
        placed = Placed(self.size_bytes, value.dtype, tuple(value.shape), stride)
        self._tensors.append((placed, value))
        self.size_bytes += _aligned(value.nbytes)
        return placed

    def write(self, memory: Any) -> None:
        """Copy the tensors into a slot's memory, a writable buffer of `size_bytes` or more."""
        for placed, tensor in self._tensors:
            _view(placed, memory).copy_(tensor)


def unpack(packed: Any, memory: Any) -> Any:
    """The value again, its tensors views of `memory`, which lives as long as one of them."""
    return mapped(
        packed, lambda value: _view(value, memory) if isinstance(value, Placed) else value
    )


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of every leaf of plain dicts, lists and tuples."""
    if type(value) is dict:
        return {key: mapped(item, function) for key, item in value.items()}
    if type(value) is list:
        # The usual list is one of keys, and there are many of them.
        if set(map(type, value)) == {str}:
            return value
        return [mapped(item, function) for item in value]
    if type(value) is tuple:
        return tuple(mapped(item, function) for item in value)
    return function(value)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor that its bytes, type and shape say everything about."""
    import torch

    if type(value) is not torch.Tensor or value.requires_grad or not value.numel():
        return False
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    return not (value.is_quantized or value.is_conj() or value.is_neg())


_NOT_DENSE = (-1,)


def _dense_stride(value: torch.Tensor) -> tuple[int, ...] | None:
    """Strides if the tensor is channels last, None if contiguous, `_NOT_DENSE` otherwise."""
    import torch

    if value.is_contiguous():
        return None
    if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return tuple(value.stride())
    return _NOT_DENSE


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _view(placed: Placed, memory: Any) -> torch.Tensor:
    import torch

    count = 1
    for length in placed.shape:
        count *= length
    flat = torch.frombuffer(memory, dtype=placed.dtype, count=count, offset=placed.offset)
    if placed.stride is None:
        return flat.view(placed.shape)
    return flat.as_strided(placed.shape, placed.stride)

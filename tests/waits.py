"""Find waits for a device, and the memory it takes, on tensors of the meta device.

there = on_meta(batch)
step(there)  # builds caches
with waits() as seen:
    step(there)
assert not seen
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Wait = tuple[str, str]
"""What waits, ``value``, ``shape`` or ``copy``, and the name of the operation."""

_MASKED = ("aten::index", "aten::index_put", "aten::index_put_")
# Any answer does: one, all rows, or yes.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": lambda tensor: 1,
    "aten::equal": lambda one, other: True,
    "aten::masked_select": lambda tensor, mask: tensor.new_empty(tensor.numel()),
    "aten::nonzero": lambda tensor: tensor.new_empty(
        (tensor.shape[0], tensor.ndim), dtype=torch.int64
    ),
}


def on_meta(value: Any) -> Any:
    """Copy tensors in nested dicts and lists to the meta device."""
    return tree_map(lambda one: one.to("meta") if isinstance(one, torch.Tensor) else one, value)


@contextmanager
def waits() -> Iterator[list[Wait]]:
    """Return a list that gets every operation that waits for the meta device."""
    seen: list[Wait] = []
    with _Operations(seen), _Constants(seen):
        yield seen


class _Operations(TorchDispatchMode):
    def __init__(self, seen: list[Wait]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        there = any(tensor.is_meta for tensor in tensors)
        if there and name in _MASKED:
            args = self._unmasked(name, args)
        elif there and torch.Tag.data_dependent_output in func.tags:
            self.seen.append(("value", name))
            return _ANSWERS[name](*args)
        elif there and torch.Tag.dynamic_output_shape in func.tags:
            self.seen.append(("shape", name))
            return _ANSWERS[name](*args)
        elif name in ("aten::_to_copy", "aten::copy_"):
            source = args[0] if name == "aten::_to_copy" else args[1]
            target = args[0].device if name == "aten::copy_" else kwargs.get("device")
            crossing = target is not None and source.is_meta != (target.type == "meta")
            if crossing and not (kwargs.get("non_blocking") or True in args[2:]):
                self.seen.append(("copy", name))
            if crossing and source.is_meta:
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        return func(*args, **kwargs)

    def _unmasked(self, name, args):
        """Replace masks among the indices by indices of all rows."""
        indices = []
        for index in args[1]:
            masked = index is not None and index.dtype in (torch.bool, torch.uint8)
            if masked:
                self.seen.append(("shape", name))
                index = torch.empty(index.shape[0], dtype=torch.int64, device="meta")
            indices.append(index)
        return args[0], indices, *args[2:]


class _Constants(TorchFunctionMode):
    """Sees tensors made of Python numbers on the device, each of which is a blocking copy."""

    def __init__(self, seen: list[Wait]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None:
            given = isinstance(args[0], torch.Tensor) and args[0].is_meta
            if torch.device(device).type == "meta" and not given:
                self.seen.append(("copy", func.__name__))
        return func(*args, **kwargs)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of storages on the meta device that are alive after each operation.

    Attributes:
        peak_bytes: The largest number so far, with the given tensors.
    """

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._sizes: dict[StorageWeakRef, int] = {}
        self._count(given)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self._count(tree_leaves(result))
        return result

    def _count(self, values):
        for value in values:
            if isinstance(value, torch.Tensor) and value.is_meta:
                storage = value.untyped_storage()
                self._sizes[StorageWeakRef(storage)] = storage.nbytes()
        self._sizes = {ref: size for ref, size in self._sizes.items() if not ref.expired()}
        self.peak_bytes = max(self.peak_bytes, sum(self._sizes.values()))

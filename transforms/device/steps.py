"""Batch transforms in two halves: draws on the host, arithmetic on the device of the batch.

`host_draws` makes all random choices of all steps while the batch is in host memory. `apply_steps`
computes on any device and never waits for it. Calling a step does both.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BatchTransform, BatchTransformCapabilities
from penstock.core.rng import batch_key
from penstock.core.sample import Batch, on_pixels, require_pixels

if TYPE_CHECKING:
    import torch

_NUMBERS_AT_ONCE = 1 << 21
_PIECE_BYTES = 1 << 20

Draws = dict[str, Any]
"""The choices of one step by name: NumPy arrays on the host, tensors on a device.

Names stay on the host and lengths are known there, so both may carry a choice without a wait.
"""


@dataclass(slots=True)
class Rows:
    """Rows whose images have one size, as a step sees them on the host.

    Attributes:
        fields: The fields of the batch. A step may replace ``boxes``, ``box_*`` and ``keypoints``.
        count: Number of rows.
        size: Height and width of the images after the earlier steps. A step that resizes images
            replaces it.
        stacked: Whether the images of the batch are one array after the earlier steps.
        mixed: Rows that an earlier step has mixed, bool [B], or None.
    """

    fields: Batch
    count: int
    size: tuple[int, int]
    stacked: bool = True
    mixed: NDArray[np.bool_] | None = None


class DeviceStep(ABC):
    """A batch transform that draws on the host and computes on any device.

    Attributes:
        capabilities: The group of positions that ranks never split.
        moves_only: Whether the step only moves pixels, so that workers may do it on the CPU.
        stacks: Whether the step makes one array of a list of images.
    """

    capabilities: BatchTransformCapabilities = BatchTransformCapabilities()
    moves_only: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def draw(self, rows: Rows) -> Draws:
        """Return all random choices as small NumPy arrays, and move boxes and keypoints."""
        return {}

    @abstractmethod
    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Return the changed batch, without a wait for the device and without changing `batch`."""

    def __call__(self, batch: Batch) -> Batch:
        """Draw and apply; for a batch on a device, this waits for a copy of its small fields."""
        device = _device_of(batch)
        host = dict(batch)
        if device:
            host |= {name: _copied(value, "cpu") for name, value in _read_fields(batch).items()}
        given = dict(host)
        draws, parts = _drawn(self, given, _parts(given))
        _join_fields(given, parts)
        moved = {name: given[name] for name in given if given[name] is not host[name]}
        if device:
            moved = {name: _copied(value, device) for name, value in moved.items()}
            draws = {name: _copied(value, device) for name, value in draws.items()}
        with _plain_arithmetic(batch):
            return self.apply({**batch, **moved} if moved else batch, draws)


class PixelStep(DeviceStep):
    """A step that changes the pixels of `fields`, in arrays or lists of any layout.

    `arrays` and `tensors` take [n, H, W, ...] with the channels last, and must not change it.
    """

    fields: ClassVar[tuple[str, ...]] = ("image",)

    def __init__(self, *, seed: int, split: str, step: str) -> None:
        self._active = split == "train"
        self._step = step
        self._key = batch_key(seed, step)

    @abstractmethod
    def arrays(self, pixels: NDArray[Any], draws: Draws) -> NDArray[Any]:
        """Return changed pixels in host memory."""

    @abstractmethod
    def tensors(self, pixels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return changed pixels on their device."""

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Change the pixels; without draws, return the batch itself."""
        if not draws:
            return batch
        fields = [field for field in self.fields if field in batch]
        return {**batch, **{field: self._changed(batch[field], draws) for field in fields}}

    def _changed(self, value: Any, draws: Draws) -> Any:
        if "/" not in next(iter(draws)):
            return self._in_layout(value, draws)
        own: list[Draws] = [{} for _ in value]
        for name, drawn in draws.items():
            row, _, name = name.partition("/")
            own[int(row)][name] = drawn
        rows = [
            self._in_layout(one[None], drawn) if drawn else one[None]
            for one, drawn in zip(value, own, strict=True)
        ]
        if isinstance(value, list) and not self.stacks:
            return [row[0] for row in rows]
        return joined(rows)

    def _in_layout(self, value: Any, draws: Draws) -> Any:
        if not is_planes(value):
            return self._on_device(value, draws)
        if isinstance(value, np.ndarray):
            return self._on_device(value.transpose(0, 2, 3, 1), draws).transpose(0, 3, 1, 2)
        return self._on_device(value.permute(0, 2, 3, 1), draws).permute(0, 3, 1, 2)

    def _on_device(self, value: Any, draws: Draws) -> Any:
        if isinstance(value, np.ndarray):
            return self.arrays(value, draws)
        import torch

        half = value.is_floating_point() and value.itemsize < 4  # which OpenCV cannot resize
        if half or value.device.type != "cpu":
            draws = {name: torch.as_tensor(draw) for name, draw in draws.items()}
            return self.tensors(value, draws)
        draws = {name: np.asarray(draw) for name, draw in draws.items()}
        return torch.from_numpy(self.arrays(value.detach().numpy(), draws))


class StepChain:
    """Several steps as one batch transform, each drawn and applied in turn."""

    def __init__(self, steps: Sequence[BatchTransform]) -> None:
        self.steps = tuple(steps)

    def __call__(self, batch: Batch) -> Batch:
        """Apply all steps; if they only move bytes in host memory, do so a few rows at a time."""
        image = batch.get("image")
        movers = all(_draws(step) and step.moves_only for step in self.steps)
        stacked = not (image is None or isinstance(image, list) or is_planes(image))
        if movers and stacked and _device_of(batch) is None:
            draws = host_draws(self.steps, dict(batch))
            fields = [field for field in ("image", "mask") if field in batch and any(draws)]
            moved: Batch = {field: self._in_pieces(field, batch[field], draws) for field in fields}
            return {**batch, **moved} if moved else batch
        for step in self.steps:
            batch = on_pixels(step, batch)
        return batch

    def _in_pieces(self, field: str, value: Any, draws: Sequence[Draws]) -> Any:
        """Apply all steps to so few rows that the cache holds them from step to step."""
        pixels, result = np.asarray(value), None
        at_once = max(1, _PIECE_BYTES // max(1, pixels[:1].nbytes))
        for start in range(0, max(1, len(pixels)), at_once):
            rows = slice(start, start + at_once)
            own = [{name: draw[rows] for name, draw in each.items()} for each in draws]
            piece = apply_steps(self.steps, {field: pixels[rows]}, own)[field]
            if at_once >= len(pixels):
                return like(value, piece)
            if result is None:
                result = np.empty((len(pixels), *piece.shape[1:]), pixels.dtype)
            result[rows] = piece
        return like(value, result)


def host_draws(steps: Sequence[BatchTransform], batch: Batch) -> list[dict[str, NDArray[Any]]]:
    """Return the draws of each step for a batch in host memory.

    ``boxes``, ``box_*`` and ``keypoints`` in `batch` are replaced by the moved ones. A callable
    that is no `DeviceStep` draws nothing and is taken to keep sizes and rows.

    Raises:
        ValueError: A step cannot process the batch.
    """
    parts = _parts(batch)
    found: list[Draws] = []
    for step in steps:
        draws: Draws = {}
        if _draws(step):
            draws, parts = _drawn(step, batch, parts)
        found.append(draws)
    _join_fields(batch, parts)
    return found


def apply_steps(steps: Sequence[BatchTransform], batch: Batch, draws: Sequence[Draws]) -> Batch:
    """Apply all steps where the batch is, without gradients and autocast.

    Args:
        steps: As given to `host_draws`.
        batch: The batch that `host_draws` got, on any device.
        draws: Its result: tensors on the same device, or NumPy arrays on the CPU.

    Raises:
        ValueError: A callable that is no `DeviceStep` changed sizes, rows or boxes before a step
            that has drawn for the earlier ones.
    """
    with _plain_arithmetic(batch):
        for number, (step, drawn) in enumerate(zip(steps, draws, strict=True)):
            if _draws(step):
                batch = step.apply(batch, drawn)
                continue
            before, batch = batch, on_pixels(step, batch)
            if any(draws[number + 1 :]) and _geometry(before) != _geometry(batch):
                raise ValueError(
                    f"augment.device: {getattr(step, '__name__', type(step).__name__)} changes "
                    f"sizes, rows, boxes or keypoints before a step that has drawn for the old "
                    f"ones; put it last, or derive it from {DeviceStep.__module__}.DeviceStep"
                )
    return batch


def is_planes(value: Any) -> bool:
    """Return whether images are float [B, C, H, W] rather than [B, H, W, C]."""
    return value.ndim == 4 and is_float(value)


def is_float(value: Any) -> bool:
    """Return whether an array or tensor has floats."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f"
    return bool(value.is_floating_point())


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate arrays or tensors along their first axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def like(value: Any, array: Any) -> Any:
    """Return an array as a tensor if `value` is a tensor."""
    if isinstance(value, np.ndarray):
        return array
    import torch

    return torch.as_tensor(array)


def rows_at_once(pixels: Any, parts: int = 10) -> int:
    """Return how many rows to have as floats at once: one of `parts`, or 2 million numbers."""
    per_row = max(1, pixels[:1].numel())
    return max(-(-len(pixels) // parts), _NUMBERS_AT_ONCE // per_row, 1)


def refuse_fixed_fields(fields: Batch, step: str) -> None:
    """Raise ValueError if a batch has boxes or keypoints, which the step does not move."""
    for field in ("boxes", "keypoints"):
        if field in fields:
            raise ValueError(
                f"augment.device.{step}: the batch has {field}, which the step does not move; "
                f"augment per sample in augment.train, or drop them with "
                f"dataset.keys={{{field}:null}}"
            )


def _draws(step: BatchTransform) -> TypeGuard[DeviceStep]:
    """Return whether a step is in two halves, rather than called as a whole."""
    return isinstance(step, DeviceStep) and type(step).__call__ is DeviceStep.__call__


def _is_moved(name: str) -> bool:
    return name.startswith(("boxes", "box_", "keypoints"))


def _read_fields(batch: Batch) -> Batch:
    """Return the fields whose values steps read on the host."""
    read = ("epoch", "position", "valid", "label_weight")
    return {name: value for name, value in batch.items() if name in read or _is_moved(name)}


def _parts(batch: Batch) -> list[Rows]:
    """Return the rows of a batch: all together, or one by one if images are a list."""
    image = batch.get("image")
    require_pixels(image)
    if not isinstance(image, list):
        count = len(batch.get("position", ()) if image is None else image)
        return [Rows(batch, count, _size_of(image))]
    parts = []
    for row, one in enumerate(image):
        own = {name: value[row : row + 1] for name, value in _read_fields(batch).items()}
        parts.append(Rows({**batch, **own}, 1, _size_of(one[None]), stacked=False))
    return parts


def _drawn(step: DeviceStep, batch: Batch, parts: list[Rows]) -> tuple[Draws, list[Rows]]:
    """Return a step's draws, with the row in each name if images are a list, and the new parts."""
    if parts and parts[0].stacked:
        return step.draw(parts[0]), parts
    draws = {
        f"{row}/{name}": draw
        for row, part in enumerate(parts)
        for name, draw in step.draw(part).items()
    }
    if not step.stacks or not parts:
        return draws, parts
    _join_fields(batch, parts)
    return draws, [Rows(batch, len(parts), parts[0].size)]


def _join_fields(batch: Batch, parts: Sequence[Rows]) -> None:
    """Put moved fields of single rows back into their batch."""
    if not parts or parts[0].stacked:
        return
    for name in filter(_is_moved, batch):
        own = [part.fields[name] for part in parts]
        whole = isinstance(batch[name], list)
        batch[name] = [one for part in own for one in part] if whole else joined(own)


def _size_of(image: Any) -> tuple[int, int]:
    """Return height and width of uint8 [B, H, W, C] or float [B, C, H, W]; zeros without them."""
    if image is None or image.ndim < 3:
        return 0, 0
    height, width = image.shape[2:4] if is_planes(image) else image.shape[1:3]
    return int(height), int(width)


def _geometry(batch: Batch) -> list[Any]:
    """Return what draws depend on, without a look at values."""
    sizes = [(part.count, part.size) for part in _parts(batch)]
    return [sizes, *(id(value) for value in _read_fields(batch).values())]


def _device_of(batch: Batch) -> torch.device | None:
    """Return the device of a batch, or None for the CPU."""
    for value in map(batch.get, ("image", "audio", "position")):
        one = value[0] if isinstance(value, list) and value else value
        if one is None or isinstance(one, np.ndarray) or not hasattr(one, "device"):
            continue
        return None if one.device.type == "cpu" else one.device
    return None


def _copied(value: Any, device: Any) -> Any:
    import torch

    if isinstance(value, list):
        return [_copied(one, device) for one in value]
    return torch.as_tensor(value).to(device)


def _plain_arithmetic(batch: Batch) -> ExitStack:
    """Return a context without gradients and autocast; it does not import torch."""
    contexts = ExitStack()
    if (torch := sys.modules.get("torch")) is not None:
        contexts.enter_context(torch.no_grad())
        device = _device_of(batch)
        for kind in {"cpu", device.type if device else "cpu"}:
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                contexts.enter_context(torch.autocast(kind, enabled=False))
    return contexts

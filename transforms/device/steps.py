"""Batch transforms in two halves: draws on the host, arithmetic on the device of the batch.

`host_draws` makes all random choices of all steps in host memory. `apply_steps` computes on any
device and never waits for it. Calling a step or a `StepChain` does both in host memory.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BatchTransform
from penstock.core.rng import batch_key
from penstock.core.sample import Batch, require_pixels

if TYPE_CHECKING:
    import torch

_NUMBERS_AT_ONCE = 1 << 21
_PIECE_BYTES = 1 << 21

Draws = dict[str, Any]
"""The choices of one step by name: NumPy arrays on the host, tensors on a device.

Names stay on the host and lengths are known there, so both may carry a choice without a wait.
"""


@dataclass(slots=True)
class Rows:
    """A batch on the host; `size` of its images and `mixed` rows, bool [B], after earlier steps."""

    fields: Batch
    count: int
    size: tuple[int, int]
    mixed: NDArray[np.bool_] | None = None


class DeviceStep(BatchTransform):
    """A batch transform that draws on the host and computes on any device.

    Workers on the CPU may run a step with `moves_only`, which only moves pixels.
    """

    moves_only: ClassVar[bool] = False

    def draw(self, rows: Rows) -> Draws:
        """Return all random choices as small NumPy arrays."""
        return {}

    @abstractmethod
    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Return the changed batch, without a wait for the device and without changing `batch`."""

    def __call__(self, batch: Batch) -> Batch:
        """Draw and apply, in host memory."""
        return apply_steps([self], batch, host_draws([self], batch))


@dataclass(kw_only=True, eq=False)
class RandomStep(DeviceStep):
    """A step whose draws depend only on seed, epoch, position and its name, `step`.

    In ``val`` it calls `fixed` in place of `choose`. It cannot change the fields `refused`.
    """

    refused: ClassVar[tuple[str, ...]] = ()

    seed: int
    split: Literal["train", "val"]
    step: str

    def __post_init__(self) -> None:
        self.key = batch_key(self.seed, self.step)

    def draw(self, rows: Rows) -> Draws:
        """Return the draws of the split; raise ValueError for a batch that the step refuses."""
        return self.choose(rows) if self.split == "train" else self.fixed(rows)

    @abstractmethod
    def choose(self, rows: Rows) -> Draws:
        """Return the random choices of training; call `check` first."""

    def fixed(self, rows: Rows) -> Draws:
        """Return the choices of evaluation; none leave the batch as it is."""
        return {}

    def check(self, rows: Rows) -> None:
        """Raise ValueError for images of several sizes, and for refused fields."""
        if isinstance(rows.fields.get("image"), list):
            raise ValueError(
                f"augment.device.{self.step}: images are a list, expected one array; give them one "
                f"size in augment.train and stack them, or set augment.device.{self.step}=null"
            )
        for field in self.refused:
            if field in rows.fields:
                raise ValueError(
                    f"augment.device.{self.step}: the batch has {field}, which it cannot change; "
                    f"augment in augment.train, or drop it with dataset.keys={{{field}:null}}"
                )


class PixelStep(RandomStep):
    """A random step that changes the pixels of `fields`, in arrays of any layout.

    `arrays` and `tensors` take [n, H, W, ...] with the channels last, and must not change it.
    """

    fields: ClassVar[tuple[str, ...]] = ("image",)

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
        planes = is_planes(value)
        pixels = value.swapaxes(1, 3).swapaxes(1, 2) if planes else value
        if isinstance(pixels, np.ndarray):
            changed: Any = self.arrays(pixels, draws)
        else:
            import torch

            half = pixels.is_floating_point() and pixels.itemsize < 4  # OpenCV cannot resize it
            if half or pixels.device.type != "cpu":
                draws = {name: torch.as_tensor(draw) for name, draw in draws.items()}
                changed = self.tensors(pixels, draws)
            else:
                draws = {name: np.asarray(draw) for name, draw in draws.items()}
                changed = torch.from_numpy(self.arrays(pixels.detach().numpy(), draws))
        return changed.swapaxes(1, 2).swapaxes(1, 3) if planes else changed


@dataclass(frozen=True, slots=True)
class StepChain(BatchTransform):
    """Several steps with `DeviceStep.moves_only` as one batch transform in host memory."""

    steps: Sequence[BatchTransform]

    def __call__(self, batch: Batch) -> Batch:
        """Draw for all steps and apply them, to large arrays in pieces that fit into the cache."""
        draws, image = host_draws(self.steps, batch), batch.get("image")
        if not isinstance(image, np.ndarray) or image.nbytes <= _PIECE_BYTES or not any(draws):
            return apply_steps(self.steps, batch, draws)
        at_once = max(1, _PIECE_BYTES // image[0].nbytes)
        moved: Batch = {}
        for start in range(0, len(image), at_once):
            rows = slice(start, start + at_once)
            piece: Batch = {name: batch[name][rows] for name in ("image", "mask") if name in batch}
            own = [{name: draw[rows] for name, draw in each.items()} for each in draws]
            for field, part in apply_steps(self.steps, piece, own).items():
                if field not in moved:
                    moved[field] = np.empty((len(image), *part.shape[1:]), part.dtype)
                moved[field][rows] = part
        return {**batch, **moved}


def host_draws(steps: Sequence[BatchTransform], batch: Batch) -> list[dict[str, NDArray[Any]]]:
    """Return the draws of each step for a batch in host memory; other callables draw nothing."""
    rows = _rows_of(batch)
    return [step.draw(rows) if isinstance(step, DeviceStep) else {} for step in steps]


def apply_steps(steps: Sequence[BatchTransform], batch: Batch, draws: Sequence[Draws]) -> Batch:
    """Apply all steps where the batch is, without gradients and autocast.

    `draws` are from `host_draws`: tensors on the batch's device, or NumPy arrays on the CPU. Raise
    ValueError if a callable that is no `DeviceStep` changes sizes or rows before a step that draws.
    """
    with _plain_arithmetic(batch):
        for number, (step, drawn) in enumerate(zip(steps, draws, strict=True)):
            if isinstance(step, DeviceStep):
                batch = step.apply(batch, drawn)
                continue
            before, batch = _rows_of(batch), step(batch)
            after = _rows_of(batch)
            changed = (before.count, before.size) != (after.count, after.size)
            if changed and any(draws[number + 1 :]):
                raise ValueError(
                    f"augment.device: {getattr(step, '__name__', type(step).__name__)} changes "
                    f"sizes or rows before a step that has drawn for the old ones; put it last, or "
                    f"derive it from {DeviceStep.__module__}.DeviceStep"
                )
    return batch


def is_planes(value: Any) -> bool:
    """Return whether images are float [B, C, H, W] rather than [B, H, W, C]."""
    return value.ndim == 4 and is_float(value)


def is_float(value: Any) -> bool:
    """Return whether an array or tensor has floats."""
    return "float" in str(value.dtype)


def rows_at_once(pixels: Any, parts: int = 10) -> int:
    """Return how many rows to have as floats at once: one of `parts`, or 2 million numbers."""
    per_row = max(1, pixels[:1].numel())
    return max(-(-len(pixels) // parts), _NUMBERS_AT_ONCE // per_row, 1)


def _rows_of(batch: Batch) -> Rows:
    """Return the rows of a batch; the size of a list of images is zeros."""
    image = batch.get("image")
    require_pixels(image)
    count = len(batch.get("position", ()) if image is None else image)
    if image is None or isinstance(image, list) or image.ndim < 3:
        return Rows(batch, count, (0, 0))
    height, width = image.shape[2:4] if is_planes(image) else image.shape[1:3]
    return Rows(batch, count, (int(height), int(width)))


def _plain_arithmetic(batch: Batch) -> ExitStack:
    """Return a context without gradients and autocast; it does not import torch."""
    contexts = ExitStack()
    if (torch := sys.modules.get("torch")) is not None:
        contexts.enter_context(torch.no_grad())
        kinds = {v.device.type for v in batch.values() if isinstance(v, torch.Tensor)}
        for kind in kinds:
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                contexts.enter_context(torch.autocast(kind, enabled=False))
    return contexts

"""``python -m pipeline preview``: a picture of what the model gets, beside the originals."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.registry import register

if TYPE_CHECKING:
    from datasets.protocols import BatchTransform
    from datasets.sample import Batch

_CELL = 160
_CAPTION = 18


@register("settings", "preview")
@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSettings:
    """What to draw, and where.

    Args:
        path: The PNG to write.
        split: The split to draw from.
        samples: Number of samples, one a row.
        epochs: Number of epochs: the same positions, drawn again.
    """

    path: str = "preview.png"
    split: Literal["train", "val"] = "train"
    samples: int = 8
    epochs: int = 3


def run(config: dict[str, Any]) -> int:
    """Draw a row for each sample: the original, then what each epoch makes of it."""
    import cv2

    from pipeline.build import build_dataset, build_device_transforms, build_settings

    settings: PreviewSettings = build_settings(config["preview"])
    transforms = build_device_transforms(config, settings.split)
    dataset: Any = build_dataset(config, settings.split)
    if not hasattr(dataset, "fetch"):
        raise ValueError("preview: a stream cannot be read here and there; preview its source")
    plain = deepcopy(config)
    plain["augment"] |= {"train": {}, "eval": {}}
    originals: Any = build_dataset(plain, settings.split)
    count = min(settings.samples, len(dataset))
    if not count:
        raise ValueError(f"preview: the split {settings.split} has no samples")

    indices = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
    positions = np.arange(count, dtype=np.int64)
    names = dataset.index.class_names
    columns = [[_cell(s, "original", names) for s in originals.fetch(indices, positions, 0)]]
    for epoch in range(settings.epochs):
        samples = [
            _as_on_device(sample, epoch, transforms)
            for sample in dataset.fetch(indices, positions, epoch)
        ]
        columns.append([_cell(sample, f"epoch {epoch}", names) for sample in samples])
    picture = np.concatenate([np.concatenate(column, axis=0) for column in columns], axis=1)
    encoded = cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes()
    Path(settings.path).write_bytes(encoded)
    height, width = picture.shape[:2]
    print(
        f"{count} samples of {settings.split}, {settings.epochs} epochs: {width} x {height} pixels"
    )
    print(f"written: {settings.path}")
    return 0


def _as_on_device(sample: Any, epoch: int, transforms: list[BatchTransform]) -> Any:
    """A sample after the device's steps, up to the first that leaves no pixels to be shown."""
    import torch

    if not isinstance(sample, dict) or sample["image"].ndim != 3:
        return sample
    batch: Batch = {
        "image": torch.tensor(sample["image"])[None],
        "position": torch.tensor([sample["position"]]),
        "epoch": torch.tensor([epoch]),
    }
    for transform in transforms:
        changed = transform(batch)
        if changed["image"].dtype != torch.uint8:
            break
        batch = changed
    return {**sample, "image": batch["image"][0].numpy()}


def _cell(sample: Any, title: str, names: tuple[str, ...] | None) -> np.ndarray:
    """One picture with its caption, uint8 [_CELL + _CAPTION, _CELL, 3], RGB."""
    import cv2

    cell = np.full((_CELL + _CAPTION, _CELL, 3), 24, np.uint8)
    if not isinstance(sample, dict):
        caption = f"bad: {sample.key}"
    else:
        label = sample.get("label")
        name = names[label] if names and label is not None else label
        caption = f"{title}: {name}" if name is not None else title
        image = sample["image"]
        if image.ndim == 2 or image.shape[2] == 1:
            image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
        scale = min((_CELL - 4) / image.shape[0], (_CELL - 4) / image.shape[1])
        size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
        shown = cv2.resize(image[:, :, :3], size, interpolation=cv2.INTER_AREA)
        top, left = (_CELL - size[1]) // 2, (_CELL - size[0]) // 2
        cell[_CAPTION + top : _CAPTION + top + size[1], left : left + size[0]] = shown
    ascii_caption = caption.encode("ascii", "replace").decode()[:26]
    cv2.putText(
        cell,
        ascii_caption,
        (4, 13),
        cv2.FONT_HERSHEY_SIMPLEX,
        0.38,
        (230, 230, 230),
        1,
        cv2.LINE_AA,
    )
    return cell

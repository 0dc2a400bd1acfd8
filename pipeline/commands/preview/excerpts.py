"""What of a sample is told in words: its class, numbers, text, and the beginning of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.commands.preview.overlays import Classes

OWN = frozenset({"index", "key", "position", "epoch", "valid", "num_valid"})
DRAWN = frozenset({"image", "mask", "boxes", "keypoints"})
_LABELS = frozenset({"label", "label_other", "label_weight"})
_MOST_FIELDS, _MOST_VALUES, _MOST_LETTERS = 14, 20, 160
_SHARE = 0.005


def lines_of(sample: Mapping[str, Any], classes: Mapping[str, Classes]) -> tuple[str, ...]:
    """Lines about a sample: its class first, then its size, then every field of its own.

    Args:
        sample: A sample, or a row of a batch.
        classes: Names by field.
    """
    lines = []
    if "label" in sample:
        lines.append(_class_text(sample, classes.get("label", Classes())))
    image = sample.get("image")
    if image is not None and getattr(image, "ndim", 0) >= 2:
        lines.append(f"{image.shape[1]} × {image.shape[0]} pixels")
    if "boxes" in sample:
        lines.append(_counted(len(sample["boxes"]), "box", "boxes"))
    if "keypoints" in sample:
        points = np.asarray(sample["keypoints"]).reshape(-1, 3)
        seen = int((points[:, 2] > 0).sum())
        lines.append(f"{seen} of {_counted(len(points), 'keypoint', 'keypoints')} visible")
    rest = [
        name for name in sample if name not in OWN | DRAWN | _LABELS and not name.startswith("box_")
    ]
    told = [line for name in rest for line in _field_lines(name, sample[name], classes.get(name))]
    lines += told[:_MOST_FIELDS]
    if len(told) > _MOST_FIELDS:
        lines.append(f"… and {len(told) - _MOST_FIELDS} more fields")
    return tuple(lines)


def _class_text(sample: Mapping[str, Any], classes: Classes) -> str:
    """A sample's class; where it is mixed with another one, both with their shares."""
    label, weight = sample["label"], sample.get("label_weight")
    if "label_other" not in sample or weight is None or np.ndim(label):
        return label_text(label, classes)
    share, other = float(weight), sample["label_other"]
    if share == 1 or label == other:
        return label_text(label, classes)
    return (
        f"{share:.1%} {label_text(label, classes)} + {1 - share:.1%} {label_text(other, classes)}"
    )


def _field_lines(name: str, value: Any, classes: Classes | None = None) -> list[str]:
    """A line about a field, or one about each of those that are nested in it."""
    if classes is not None and classes.names:
        return [f"{name}: {label_text(value, classes)}"]
    if isinstance(value, Mapping):
        return [line for key in value for line in _field_lines(f"{name}.{key}", value[key])]
    return [field_text(name, value)]


def label_text(label: Any, classes: Classes) -> str:
    """A class's name; of several that are mixed, each with its share."""
    values = np.asarray(label)
    if values.ndim == 0 or values.size == 1:
        value = values.reshape(-1)[0]
        return classes.name(int(value)) if values.dtype.kind in "iub" else str(value)
    if values.dtype.kind == "f" and values.ndim == 1:
        order = np.argsort(-values, kind="stable")
        shares = [(int(i), float(values[i])) for i in order if values[i] > _SHARE]
        if len(shares) == 1 and abs(shares[0][1] - 1) < _SHARE:
            return classes.name(shares[0][0])
        return " + ".join(f"{share:.2f} {classes.name(i)}" for i, share in shares[:4])
    if values.dtype.kind in "iub" and values.ndim == 1 and set(np.unique(values)) <= {0, 1}:
        return ", ".join(classes.name(int(i)) for i in np.flatnonzero(values)) or "no class"
    return field_text("label", label)


def field_text(name: str, value: Any) -> str:
    """A field and the beginning of what it holds."""
    return f"{name}{_excerpt(value)}".removesuffix(": ")


def _excerpt(value: Any) -> str:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, Mapping):
        parts = [f"{key}{_excerpt(item)}" for key, item in list(value.items())[:_MOST_VALUES]]
        return _short(f" {{{'; '.join(parts)}}}")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f": {len(value):,} bytes"
    if isinstance(value, str):
        return ": " + _short(value)
    if isinstance(value, (list, tuple)):
        parts = [_excerpt(item).lstrip(": ") for item in value[:_MOST_VALUES]]
        more = " …" if len(value) > _MOST_VALUES else ""
        return _short(f" [{len(value)}]: {', '.join(parts)}{more}")
    array = value if isinstance(value, np.ndarray) else None
    if array is None or array.ndim == 0:
        return ": " + _short(_number(value))
    sizes = " × ".join(map(str, array.shape))
    if array.ndim == 2 and len(array) == 2 and array.dtype.kind in "iu":  # as edges are written
        pairs = [f"{start}–{end}" for start, end in array[:, :_MOST_VALUES].T.tolist()]
        more = " …" if array.shape[1] > _MOST_VALUES else ""
        return _short(f" [{sizes}]: {' '.join(pairs)}{more}")
    flat = array.reshape(-1)[:_MOST_VALUES]
    more = " …" if array.size > _MOST_VALUES else ""
    return _short(f" [{sizes}]: {' '.join(_number(item) for item in flat)}{more}")


def _number(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.4g}"
    return str(value)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"

"""Class ids that lie in arrays, and the names of their classes beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES_NAME = "classes.txt"
_MOST_CLASSES = 1 << 24


def check_labels(
    labels: NDArray[Any], names: tuple[str, ...] | None, *, where: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Class ids as the index holds them.

    Args:
        labels: Integers [N].
        names: Class names by id; None: the ids are their names.
        where: The storage, for messages.

    Returns:
        int32 [N], and the names of the classes.

    Raises:
        ValueError: They are no class ids, or one has no class.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: label is {labels.dtype} {list(labels.shape)}, expected integers [N], "
            f"class ids from 0 on; save it so, or give the file another name"
        )
    most = _MOST_CLASSES if names is None else len(names)
    wrong = np.flatnonzero((labels < 0) | (labels >= most))
    if wrong.size:
        known = "" if names is None else f": there are {most} classes"
        raise ValueError(
            f"{where}: label {labels[wrong[0]]} in row {wrong[0]}, expected 0 to {most - 1}"
            f"{known}; correct it, or leave such rows out"
        )
    names = names or tuple(str(i) for i in range(int(labels.max()) + 1))
    return labels.astype(np.int32), names


def class_names(
    folder: str | None, classes: Sequence[str] | None, *, where: str
) -> tuple[str, ...] | None:
    """The class names that are given, or those beside the arrays; both must be the same.

    Args:
        folder: Where ``classes.txt`` may lie, a name per line.
        classes: The names that are given, by id.
        where: The storage, for messages.

    Raises:
        ValueError: They are not.
    """
    given = None if classes is None else tuple(classes)
    beside = None if folder is None else Path(folder, CLASSES_NAME)
    if beside is None or not beside.is_file():
        return given
    names = tuple(beside.read_text(encoding="utf-8").split("\n"))
    names = names[:-1] if names and not names[-1] else names
    if given is not None and names != given:
        raise ValueError(
            f"{where}: {CLASSES_NAME} has other classes than dataset.storage.classes or the "
            f"training data; give both the same names in the same order"
        )
    return names


def check_images(shape: Sequence[int], dtype: str, *, where: str) -> None:
    """Raise ValueError for arrays that are no decoded images, uint8 [N, H, W, C]."""
    if dtype == "|u1" and len(shape) == 4 and shape[-1] in (1, 3, 4):
        return
    remedy = "save them so, or call the field array"
    if dtype == "|u1" and len(shape) == 4 and shape[1] in (1, 3, 4):
        remedy = "put the channels last: images.transpose(0, 2, 3, 1)"
    elif dtype == "|u1" and len(shape) == 3:
        remedy = "give them an axis of channels: images[..., None]"
    raise ValueError(
        f"{where}: images are {np.dtype(dtype)} {list(shape)}, expected uint8 "
        f"[N, H, W, C] with 1, 3 or 4 channels; {remedy}"
    )

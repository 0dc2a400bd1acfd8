"""Labels of records that come one by one: nobody has seen all of their classes before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLASSES_NAME = "classes.txt"


class StreamLabels:
    """Class ids of labels.

    Args:
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            `folder`, if it is there, and else labels have to be ids.
        folder: Where the data lies; empty if it lies in no folder.

    Attributes:
        names: Class names by id, or None.

    Raises:
        ValueError: A name stands twice.
    """

    def __init__(self, classes: Sequence[str] | int | None, *, folder: str = "") -> None:
        if classes is None and folder:
            file = Path(folder, CLASSES_NAME)
            classes = file.read_text(encoding="utf-8").splitlines() if file.is_file() else None
        if isinstance(classes, int):
            classes = tuple(map(str, range(classes)))
        self.names = None if classes is None else tuple(classes)
        self._ids = {name: number for number, name in enumerate(self.names or ())}
        if self.names is not None and len(self._ids) < len(self.names):
            twice = next(name for n, name in enumerate(self.names) if self._ids[name] != n)
            raise ValueError(f"dataset.source.classes: {twice!r} stands twice; name it once")

    def id_of(self, label: Any) -> int:
        """The class id of a label: an id, or the name of a class.

        Raises:
            ValueError: It is none.
        """
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if isinstance(label, int) and not isinstance(label, bool):
            if label >= 0 and (self.names is None or label < len(self.names)):
                return label
        if self.names is None:
            raise ValueError(
                f"label {label!r} is no class id; give the class names by id: "
                f"dataset.source.classes=[...]"
            )
        raise ValueError(
            f"label {label!r} is not among the {len(self.names)} classes; correct it, or "
            f"dataset.source.classes"
        )

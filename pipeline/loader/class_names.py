"""Names of the classes of a dataset, by the field that holds their ids."""

from __future__ import annotations

from typing import Any


def classes_of(dataset: Any, field: str) -> tuple[str, ...] | None:
    """Names of the classes whose ids a field holds (``label``, ``box_labels``, ``mask``).

    None where there is no such field, or its classes have no names.
    """
    holder = getattr(dataset, "index", dataset)  # a stream has no index
    if field == "label":
        return getattr(holder, "class_names", None)
    return getattr(holder, "field_classes", {}).get(field)

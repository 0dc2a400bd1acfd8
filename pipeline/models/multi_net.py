"""A small network for several tasks at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.registry import register

if TYPE_CHECKING:
    from pipeline.networks.multi_net import MultiNet

_FIELDS = ("label", "box_labels", "keypoints", "mask")


@register("model", "multi_net")
def multi_net(*, task_fields: Mapping[str, tuple[str, int]], width: int = 16) -> MultiNet:
    """A small network with shared features and a head for each task of `task=multi`.

    Args:
        task_fields: By the task's name: its field and the number of its classes.
        width: Channels of the first stage; the others have 2 and 4 times as many.

    Raises:
        ValueError: There are no tasks, or one is of a kind or of data that it has no head for.
    """
    from pipeline.networks.multi_net import MultiNet

    if width < 8 or width % 8:
        raise ValueError(f"model multi_net: width is {width}, expected a multiple of 8")
    if not task_fields:
        raise ValueError("model multi_net has a head for each of several tasks; type task=multi")
    for name, (field, count) in task_fields.items():
        if field not in _FIELDS:
            raise ValueError(
                f"model multi_net: task {name!r} is about {field!r}, and there are heads for "
                f"{', '.join(_FIELDS)}; take a model of your own"
            )
        if not count:
            raise ValueError(
                f"model multi_net: task {name!r} is about {field!r}, and the data has no classes "
                f"of it; choose dataset/annotations that have, or take task.tasks.{name} away"
            )
    return MultiNet(task_fields, width=width)

"""The names of a run's classes beside its checkpoints, for data that does not name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.training.run_folder import write_whole

NAME = "classes.json"


def keep_classes(run_dir: Path, classes: Mapping[str, Sequence[str]]) -> None:
    """Write the names of the classes, by field, to a run's folder."""
    text = json.dumps(classes, indent=1, ensure_ascii=False)
    write_whole(run_dir / NAME, text + "\n")


def read_classes(run_dir: Path) -> dict[str, tuple[str, ...]]:
    """What `keep_classes` wrote; nothing where there is no such file.

    Raises:
        ValueError: The file is damaged.
    """
    path = run_dir / NAME
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(field): tuple(map(str, names)) for field, names in content.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); name the classes in the data") from error

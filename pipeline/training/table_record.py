"""The figures of a table beside the checkpoints that were trained by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.loader.state import differing
from pipeline.training.run_folder import write_whole

NAME = "table.json"


def keep_table(run_dir: Path, table: Any, *, resumes: bool, anyway: bool) -> None:
    """Write what a table's samples were scaled by to a run's folder, or compare with it.

    Args:
        run_dir: The run's folder.
        table: What the loader knows of a table, see `TableDecoder`; None: nothing is written.
        resumes: The run goes on: its figures must be those that it began with.
        anyway: They may differ.

    Raises:
        ValueError: They differ (one line).
    """
    path = run_dir / NAME
    if table is None:
        return
    now = table.statistics.as_json()
    if resumes and path.exists() and not anyway:
        try:
            then = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); start anew") from error
        line = next(differing(then, now, "table"), None)
        if line is not None:
            raise ValueError(
                f"trainer.resume: the model was trained with other figures of its columns: {line}; "
                f"use the same data, or go on with the old ones: dataset.decode.statistics={path} "
                f"trainer.resume_anyway=true"
            )
    write_whole(path, json.dumps(now, indent=1) + "\n")

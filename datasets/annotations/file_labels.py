"""How files are labelled: by their folder, by their name, or by a CSV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from datasets.annotations.labels import names_from_csv, names_from_folders, names_from_pattern


@dataclass(frozen=True, slots=True)
class FileLabels:
    """Where the labels of files come from.

    Attributes:
        source: ``folder``, ``filename``, ``file`` (their own), the absolute path of a CSV, or
            None for no labels.
        pattern: For ``filename``: a regular expression whose group is the label.
    """

    source: str | None
    pattern: str | None

    @classmethod
    def of(
        cls, labels: str | None, pattern: str | None, *, folder: str, own: bool = False
    ) -> FileLabels:
        """As a config says it; a CSV's relative path may also lie in the data's `folder`.

        Args:
            labels: What the config says.
            pattern: See `FileLabels`.
            folder: The data's folder.
            own: Whether the files can hold labels themselves.
        """
        if labels not in (None, "folder", "filename") and not (own and labels == "file"):
            inside = os.path.join(folder, labels)
            labels = os.path.abspath(labels if os.path.exists(labels) else inside)
        return cls(labels, pattern)

    def names(self, keys: Sequence[str], *, where: str) -> list[str]:
        """The label of each key, a path below the data's folder.

        Raises:
            ValueError: A key has none.
        """
        assert self.source is not None
        if self.source == "folder":
            return names_from_folders(keys, where=where)
        if self.source == "filename":
            names = [key.rpartition("/")[2] for key in keys]
            return names_from_pattern(names, self.pattern, where=where)
        return names_from_csv(keys, self.source, where=where)

    def csv_version(self) -> list[int] | None:
        """Size and mtime in ns of the CSV, if there is one: whether it is as it was."""
        if self.source in (None, "folder", "filename", "file"):
            return None
        try:
            status = os.stat(self.source)
        except OSError:
            return None
        return [status.st_size, status.st_mtime_ns]

"""Paths on a command line: ``penstock predict photos/*.jpg`` reads these files."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator, Sequence

from penstock.core.user_errors import Problem
from penstock.datasets.files.access import is_url
from penstock.datasets.files.data_files import IMAGE_ENDINGS
from penstock.pipeline.config.errors import ConfigError, nearest_path

_RECORD_FILES = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".zip", ".lmdb")


def naming_files(texts: Sequence[str]) -> list[str]:
    """Replace paths among overrides by the overrides that read them.

    A pattern that the shell did not expand, such as ``photos/**/*.jpg``, stands for the files that
    match. One file of records, such as ``test.csv``, is read in the form of the run.

    Raises:
        ConfigError: A path does not exist, or a folder is given beside other paths.
    """
    given = [text for text in texts if "=" not in text and not text.startswith("~")]
    others = [text for text in texts if text not in given]
    if not given:
        return others
    paths = [found for path in given for found in _expanded(path)]
    problems = list(_missing(paths))
    folders = [path for path in paths if _names_folder(path)]
    if len(paths) > 1 and folders:
        problems.append(Problem(folders[0], "give one folder alone, or only files"))
    if problems:
        raise ConfigError(problems)
    quoted = ["'" + path.replace("'", "\\'") + "'" for path in paths]
    if folders:
        data = ["dataset=image_folder", f"dataset.storage.path={quoted[0]}"]
    elif len(paths) == 1 and paths[0].lower().endswith(_RECORD_FILES):
        data = [f"dataset.storage.path={quoted[0]}"]
    else:
        data = ["dataset=image_files", f"dataset.storage.paths=[{','.join(quoted)}]"]
    return [*data, *others]


def _missing(paths: Sequence[str]) -> Iterator[Problem]:
    for path in paths:
        if not is_url(path) and not os.path.exists(path):
            near = nearest_path(path)
            remedy = f"type {shlex.quote(near)}" if near else "give images, a folder, or key=value"
            yield Problem(path, f"no such file or folder; {remedy}")


def _expanded(path: str) -> list[str]:
    """List the files that match a pattern, in order, or the path itself."""
    if is_url(path) or os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(filter(os.path.isfile, glob.iglob(path, recursive=True))) or [path]


def _names_folder(path: str) -> bool:
    """Return whether a path is a folder; a URL is one unless it ends as image files do."""
    return not path.lower().endswith(IMAGE_ENDINGS) if is_url(path) else os.path.isdir(path)

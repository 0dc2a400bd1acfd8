"""Checks that the tests of several forms share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.storage import Expected, check_storage


def refusal(storage: Any, match: str | None = None) -> str:
    """Return the error of a storage that cannot be opened: one line that names the storage."""
    with pytest.raises(ValueError, match=match) as error:
        len(storage)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{storage.name} ")
    return str(error.value)


def check_with_copy(
    make: Callable[[str], Any],
    path: Path | str,
    expected: Sequence[Expected],
    *,
    copied: str | None = None,
    **options: Any,
) -> None:
    """Check a storage and a copy of its folder, which `copied` names if not by the same name."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    name = str(Path(path).relative_to(folder)) if copied is None else copied
    with tempfile.TemporaryDirectory() as other:
        copy = f"{shutil.copytree(folder, f'{other}/copy')}/{name}"
        check_storage(lambda: make(str(path)), expected, make_copy=lambda: make(copy), **options)


def keys(storage: Any) -> list[str]:
    return storage.index.keys(np.arange(len(storage)))

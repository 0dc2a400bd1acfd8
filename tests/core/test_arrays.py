"""`.npy` headers are read also where CPython's parser fails for nothing (its issue 106905)."""

import io
from pathlib import Path

import numpy as np
import pytest

from penstock.core.arrays import map_npy, read_npy, read_npy_header, write_npy


@pytest.fixture
def parser_that_fails_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's reading of a header fails twice, having read, as where several threads parse."""
    real, left = np.lib.format.read_array_header_1_0, [2]

    def read(file: io.BytesIO, *args: object, **options: object) -> object:
        found = real(file, *args, **options)  # type: ignore[arg-type]
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=54, after=50)")
        return found

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", read)


@pytest.mark.usefixtures("parser_that_fails_twice")
def test_a_record_is_not_taken_for_damaged() -> None:
    array = np.arange(35, dtype=np.int16).reshape(5, 7)
    np.testing.assert_array_equal(read_npy(write_npy(array)), array)


@pytest.mark.usefixtures("parser_that_fails_twice")
def test_a_file_stands_at_its_array_afterwards() -> None:
    file = io.BytesIO(write_npy(np.arange(3, dtype=np.uint8)))
    assert read_npy_header(file) == ((3,), False, np.dtype(np.uint8))
    assert file.read() == b"\x00\x01\x02"


def test_a_file_is_mapped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "order.npy"
    np.save(path, np.arange(500))
    real, left = np.load, [1]

    def load(*args: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=54, after=50)")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "load", load)
    np.testing.assert_array_equal(map_npy(path), np.arange(500))

"""Data of the laws."""

from tests.laws.conftest import packed, photos  # noqa: F401

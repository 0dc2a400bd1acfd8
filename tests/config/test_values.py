"""Types: what is left of an annotation in a config, and in words."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import annotated_types
import numpy as np
import pytest

from penstock.pipeline.config.values import NOTHING, Argument, fits, mistake, reduce, words


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "an integer"),
        (float | None, "a number or null"),
        (float | np.ndarray, "a number"),
        (Number | Sequence, "a number or a list"),  # as torchvision annotates
        (Optional[Literal["a", "b"]], "a or b or null"),  # noqa: UP045
        (Annotated[int, annotated_types.Ge(1)], "an integer >= 1"),
        (Annotated[float, annotated_types.Ge(0), annotated_types.Le(1)], "a number >= 0 and <= 1"),
        (tuple[int, int], "[an integer, an integer]"),
        (tuple[float, ...], "a list of numbers"),
        (Sequence[str], "a list of strings"),
        (Mapping[str, float], "a mapping to a number"),
        (Union[Path, str], "a string"),  # noqa: UP007
        (Colour, "RED or BLUE"),
        (bool | Literal["auto"], "true or false or auto"),
        (list, "a list"),
        (dict, "a mapping"),
        (Optional[list["NotImported"]], "a list or null"),  # noqa: F821, UP045
    ],
)
def test_annotations_in_words(annotation: Any, text: str):
    assert words(reduce(annotation)) == text


@pytest.mark.parametrize("annotation", [np.ndarray, Callable[[int], int], list[np.ndarray], object])
def test_what_no_config_can_hold_is_nothing(annotation: Any):
    assert reduce(annotation) is NOTHING


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, [1, -3], [1.0, "1", True, None]),
        (float, [1, 0.5, float("inf")], ["0.5", True, None]),
        (bool, [True], [1, "true"]),
        (tuple[int, int], [[1, 2]], [[1], [1, 2, 3], 1]),
        (tuple[float, ...], [[1, 2.5]], [0.5]),
        (Iterable[str], [["a"], []], [[1], "a"]),
        (Literal["a", None], ["a", None], ["b"]),
        (dict[str, int], [{"a": 1}], [{"a": "1"}]),
        (Path, ["x/y"], [3]),
    ],
)
def test_types_are_strict(annotation: Any, right: list, wrong: list):
    for value in right:
        assert fits(reduce(annotation), value), value
    for value in wrong:
        assert not fits(reduce(annotation), value), value


def test_a_value_equal_to_the_default_is_always_right():
    argument = Argument("x", int, "auto")
    assert mistake(argument, "auto", "a.x") is None
    assert mistake(argument, "other", "a.x") is not None


def test_what_a_validator_says_is_passed_on():
    import pydantic

    def odd(value: int) -> int:
        if value % 2 == 0:
            raise ValueError("even numbers have no middle")
        return value

    argument = Argument("x", Annotated[int, pydantic.AfterValidator(odd)], "???")
    assert "no middle" in str(mistake(argument, 2, "a.x"))
    assert mistake(argument, 3, "a.x") is None

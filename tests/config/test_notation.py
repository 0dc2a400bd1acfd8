"""Types: what is left of an annotation in a config, on disk and in words."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

import annotated_types
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.notation import NOTHING, decode, encode, reduce, words
from pipeline.config.signatures import Argument
from pipeline.config.values import fits, mistake


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "an integer"),
        (float | None, "a number or null"),
        (float | np.ndarray, "a number"),
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
    ],
)
def test_annotations_in_words(annotation: Any, text: str):
    assert words(reduce(annotation)) == text


@pytest.mark.parametrize("annotation", [np.ndarray, Callable[[int], int], list[np.ndarray], object])
def test_what_no_config_can_hold_is_nothing(annotation: Any):
    assert reduce(annotation) is NOTHING


_types = st.recursive(
    st.sampled_from([
        int, float, str, bool, None, Literal["a", 3], Annotated[int, annotated_types.Gt(2)],
    ]),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),  # type: ignore[valid-type]
        inner.map(lambda t: dict[str, t]),  # type: ignore[valid-type]
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: tuple[tuple(ts)]),  # type: ignore[misc]
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: Union[tuple(ts)]),  # noqa: UP007
    ),
    max_leaves=5,
)  # fmt: skip


@given(_types)
def test_a_type_survives_its_way_to_the_disk(annotation: Any):
    import json

    again = decode(json.loads(json.dumps(encode(annotation))))
    for value in (None, 1, 3, 2.5, "a", "b", True, [1], [1, "a"], {"k": 1}, [[3]], []):
        assert fits(annotation, value) == fits(again, value)


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

"""The state of a loader: its epoch, its next batch, and the identity of its data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import index
from typing import Any

_EPOCHS = 1 << 63  # a batch stores its epoch as int64
_MISSING = "nothing"

_IDENTITY = ("seed", "plan", "pixels", "data")
"""Parts of a state that must match for the rest of the epoch to be the same."""


Place = tuple[int, int, bool, frozenset[Any]]
"""Epoch, next batch, whether the epoch has ended, and the quarantine.

The quarantine has records, or pairs of epoch and position for a stream.
"""


def as_epoch(epoch: Any) -> int:
    """Return an epoch given by the user as an int; raise ValueError if it is invalid."""
    try:
        number = index(epoch)
    except TypeError:
        number = -1
    if not 0 <= number < _EPOCHS:
        raise ValueError(f"loader: epoch {epoch!r} given, expected a whole number from 0 on")
    return number


def state_of(place: Place) -> dict[str, Any]:
    """Return a loader's place as JSON-serialisable values."""
    epoch, next_batch, finished, quarantined = place
    state = {"epoch": epoch, "next_batch": next_batch, "finished": finished}
    return {**state, "quarantined": _listed(quarantined)}


def place_of(state: Any) -> Place:
    """Return the place in a loader's state; raise ValueError if the state is malformed."""
    try:
        held = frozenset(map(_quarantined, state["quarantined"]))
        place = as_epoch(state["epoch"]), index(state["next_batch"]), bool(state["finished"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"loader state: {_shown(state)} given, expected what state_dict() gave"
        ) from None
    return *place, held


def check_state(state: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise ValueError if a state belongs to other batches, with every difference."""
    differences = [
        line
        for part in _IDENTITY
        for line in differing(state.get(part, _MISSING), current[part], part)
    ]
    if differences:
        raise ValueError(
            f"loader state: the rest of the epoch would not be the same: "
            f"{'; '.join(differences)}; use the same configuration and data, or "
            f"trainer.resume_anyway=true to resume anyway"
        )


def united(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks, in order of rank, for a checkpoint.

    All ranks are at the same batch. Their quarantines are merged, because each rank knows only its
    own and a resume may use another number of ranks.
    """
    state = dict(states[0])
    if "quarantined" in state:  # absent for a loader of fixed batches
        found = {_quarantined(item) for each in states for item in each["quarantined"]}
        state["quarantined"] = _listed(found)
    return state


def _quarantined(item: Any) -> Any:
    """Return a record's index, or a pair of epoch and position, as ints."""
    return tuple(map(index, item)) if isinstance(item, (list, tuple)) else index(item)


def _listed(quarantined: Collection[Any]) -> list[Any]:
    return [list(item) if isinstance(item, tuple) else item for item in sorted(quarantined)]


def differing(then: Any, now: Any, name: str) -> Iterator[str]:
    """Yield a line for each difference between two plain values."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted(then.keys() | now.keys()):
            yield from differing(then.get(key, _MISSING), now.get(key, _MISSING), f"{name}.{key}")
    elif then != now:
        yield f"{name} was {_shown(then)} and is {_shown(now)}"


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

"""Call the callbacks of a run, from the places of the loop that are theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.core.contracts import Callback
from penstock.pipeline.training.distributed.world import World

_log = logging.getLogger(__name__)


class Hooks:
    """The callbacks of a run, called in the order of the config.

    Args:
        callbacks: By their names in the config.
        world: The ranks.
    """

    def __init__(self, callbacks: Mapping[str, Callback], world: World) -> None:
        self._callbacks = callbacks
        self._world = world

    def stepped(self, step: int) -> None:
        """An optimizer step is done, counted from 1, and its gradients are still there."""
        for callback in self._callbacks.values():
            callback.stepped(step)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have in the model, within, the weights that are validated and saved."""
        with ExitStack() as stack:
            for callback in self._callbacks.values():
                stack.enter_context(callback.evaluating())
            yield

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """An epoch is done; the figures are those of its validation, or none."""
        for callback in self._callbacks.values():
            callback.epoch_ended(metrics)

    def stop(self) -> bool:
        """Ask whether a callback of any rank ends training here, and say why."""
        said = [f"{name}: {why}" for name, each in self._callbacks.items() if (why := each.stop())]
        said = [why for of_rank in self._world.gather(said) for why in of_rank]
        if said:
            _log.info("%s", said[0])
        return bool(said)

    def state_dict(self) -> dict[str, Any]:
        """The states of the callbacks by name; asked for within `evaluating`."""
        return {name: callback.state_dict() for name, callback in self._callbacks.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Have each go on from its state, and say where one has none or nobody takes one."""
        for name, callback in self._callbacks.items():
            if name in states:
                callback.load_state_dict(states[name])
            elif callback.state_dict():
                _log.info("the checkpoint has no callback %s: it begins here", name)
        for name, state in states.items():
            if state and name not in self._callbacks:
                _log.info("the checkpoint has a callback %s, and this run has none of it", name)

    def close(self) -> None:
        """Let each write and close what is open."""
        for callback in self._callbacks.values():
            callback.close()

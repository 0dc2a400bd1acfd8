"""The program of a worker: compute the tasks that arrive, and write the batches to the arena."""

from __future__ import annotations

import errno
import os
import pickle
import queue
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.processes import child
from penstock.pipeline.loader.arena import Layout, Packed, Slots, keep_freed_memory
from penstock.pipeline.loader.worker_errors import Failure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.contract import BatchTask
    from penstock.pipeline.loader.settings import LoaderSettings

OUT_OF_MEMORY = errno.ENOMEM
"""Exit code of a worker without memory."""

READY = "ready"


class Payload:
    """A value for another process, which first loads `imports`, modules of user's components."""

    def __init__(self, value: Any, imports: tuple[str, ...]) -> None:
        self.value = value
        self._imports = imports

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        from penstock.core.registry import modules
        from penstock.datasets.files.clients import get_retry_s

        data, known = cloudpickle.dumps(self.value), modules()
        for name, module in known.items():
            if module == "__main__" and name.encode() in data:
                raise ValueError(
                    f"{name} is defined in the program itself, which workers do not run; move it "
                    f"to a file and type imports=[my_components.py], or use loader=threads"
                )
        return _unpickled, (self._imports, known, get_retry_s(), data)


def _unpickled(
    imports: tuple[str, ...], modules: dict[str, str], retry_s: float, data: bytes
) -> Payload:
    from penstock.core.registry import expect
    from penstock.datasets.files.clients import set_retry_s

    set_retry_s(retry_s)
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    expect(modules)
    if imports:
        from penstock.pipeline.config.components import load_imports

        load_imports(imports)
    return Payload(pickle.loads(data), imports)


def serve(connection: Connection, recipe: bytes, descriptor: int, settings: LoaderSettings) -> None:
    """Compute until the connection ends, which it does with the consumer's process.

    `recipe` is a pickled payload of the computer, and `descriptor` refers to the arena's file.
    """
    settings.apply_to_worker()
    try:
        compute: BatchComputer = pickle.loads(recipe).value
    except BaseException as error:
        connection.send_bytes(pickle.dumps(Failure.of(error)))
        return
    use_one_thread()
    memory = Slots(descriptor)
    orders: queue.SimpleQueue[tuple[Sequence[BatchTask], int | None]] = queue.SimpleQueue()

    def receive() -> None:  # at once, so that the sender of large orders never waits
        try:
            while True:
                orders.put(pickle.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)  # without any tearing down, in the middle of a batch

    threading.Thread(target=receive, name="orders", daemon=True).start()
    try:
        connection.send_bytes(pickle.dumps(READY))
        while True:
            tasks, slot = orders.get()
            answer = carry_out(compute, tasks, Layout(memory, slot))
            connection.send_bytes(pickle.dumps(answer))
            del answer
    except OSError:
        os._exit(0)


def carry_out(compute: BatchComputer, tasks: Sequence[BatchTask], layout: Layout) -> Packed:
    """Compute tasks; the answer holds their deliveries up to the first failure."""
    use_one_thread()
    try:
        outcomes = compute.several(tasks, allocate=layout.allocate)
        return layout.pack([Failure.of(x) if isinstance(x, BaseException) else x for x in outcomes])
    except MemoryError:
        # After a MemoryError the state of this process cannot be trusted.
        os.write(2, b"loader: MemoryError in a worker process\n")
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:  # a batch that does not pickle
        return Packed(pickle.dumps([Failure.of(error)]), [])


def use_one_thread(*, torch: bool = True) -> None:
    """Keep libraries that this process has imported from starting threads of their own."""
    if "cv2" in sys.modules:
        import cv2  # waits for another thread that is importing it

        cv2.setNumThreads(0)
    if torch and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    keep_freed_memory()


if __name__ == "__main__":
    child.main()

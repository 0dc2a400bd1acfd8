"""The program of a worker: compute the tasks that arrive, and write the batches to the arena."""

from __future__ import annotations

import errno
import faulthandler
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.core.processes import child
from penstock.pipeline.loader.arena import Layout, Packed, SharedFile
from penstock.pipeline.loader.memory import keep_freed_memory
from penstock.pipeline.loader.worker_errors import Failure

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.pipeline.loader.compute import BatchComputer
    from penstock.pipeline.loader.contract import BatchTask
    from penstock.pipeline.loader.executors.placement import Placement

OUT_OF_MEMORY = errno.ENOMEM
"""Exit code of a worker without memory."""

TELL_STACKS = signal.SIGUSR1
"""Makes a worker write the stacks of its threads to stderr."""

READY = "ready"


class Order(NamedTuple):
    """Tasks to compute together.

    Attributes:
        tasks: The tasks.
        slot: Slot of the arena to write to; None: the batches travel in the answer.
        probes: Only surviving matters; a MemoryError counts as surviving.
    """

    tasks: Sequence[BatchTask]
    slot: int | None = None
    probes: bool = False


class Payload:
    """A value for another process, which loads the user's components and sets retries first.

    Args:
        value: The value.
        imports: Modules of the user's components.
    """

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


def serve(
    connection: Connection,
    recipe: bytes,
    *,
    descriptor: int,
    number: int,
    num_workers: int,
    placement: Placement,
) -> None:
    """Compute until the connection ends, which it does with the consumer's process.

    Args:
        connection: Orders come and answers go over it.
        recipe: Pickled payload of the computer.
        descriptor: Descriptor of the arena's file.
        number: This worker among the workers.
        num_workers: Number of workers.
        placement: Where this process runs.
    """
    placement.enter_process()
    # The descriptor and not sys.stderr, which a notebook replaces by an object without one.
    faulthandler.register(TELL_STACKS, file=2)
    try:
        compute: BatchComputer = pickle.loads(recipe).value
    except BaseException as error:
        connection.send_bytes(pickle.dumps(Failure.of(error)))
        return
    use_one_thread()
    tell_torch_datasets(compute, number, num_workers)
    file = SharedFile(descriptor)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

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
            order = orders.get()
            answer = carry_out(compute, order, Layout(file, order.slot))
            connection.send_bytes(pickle.dumps(answer))
            del answer
    except OSError:
        os._exit(0)


def carry_out(compute: BatchComputer, order: Order, layout: Layout) -> Packed:
    """Compute an order; the answer holds its deliveries up to the first failure, none of probes."""
    use_one_thread()
    try:
        outcomes = compute.several(order.tasks, allocate=layout.allocate)
        if order.probes:
            return Packed(pickle.dumps([]), [])
        sent = [Failure.of(each) if isinstance(each, BaseException) else each for each in outcomes]
        return layout.pack(sent)
    except MemoryError:
        if order.probes:
            return Packed(pickle.dumps([]), [])
        # After a MemoryError the state of this process cannot be trusted.
        os.write(2, b"loader: MemoryError in a worker process\n")
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:  # a batch that does not pickle
        return Packed(pickle.dumps([Failure.of(error)]), [])


def use_one_thread() -> None:
    """Keep libraries that this process has imported from starting threads of their own."""
    for name, settle in _SETTLED.items():
        if name in sys.modules and name not in _settled:
            _settled.add(name)
            settle(sys.modules[name])
    keep_freed_memory()


_SETTLED: dict[str, Any] = {
    "torch": lambda torch: torch.set_num_threads(1),
    "cv2": lambda cv2: cv2.setNumThreads(0),
}
_settled: set[str] = set()


def quiet_opencv() -> None:
    """Let OpenCV compute in the thread that calls it; it gives the same pixels."""
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)


def tell_torch_datasets(compute: BatchComputer, number: int, num_workers: int) -> None:
    """Let ``torch.utils.data.get_worker_info`` answer as in torch's own workers.

    Torch lacks a public way to say so, and an `IterableDataset` cannot know its part without it.
    """
    if "torch" not in sys.modules:
        return
    from torch.utils.data._utils import worker

    worker._worker_info = worker.WorkerInfo(
        id=number, num_workers=num_workers, seed=0, dataset=cast("Any", compute)
    )


if __name__ == "__main__":
    child.main()

"""The program of a child process: call the parent's function, and end with the parent.

The main module does not run again, so scripts need no ``__main__`` guard.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection


def main() -> None:
    """Call the target that the parent sends, with the connection to the parent."""
    descriptor, parent = map(int, sys.argv[1:])
    leave_signals_to_parent()
    _end_with(parent)
    connection = Connection(descriptor)
    try:
        sys.path[:], sys.argv[:] = connection.recv()
        data = connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)  # the parent ended
    target, arguments = pickle.loads(data)
    del data
    target(connection, *arguments)


def leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM, which may reach a whole job: the parent ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Neither ignored nor blocked, which the commands of a data set would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _end_with(parent: int) -> None:
    """End this process when process `parent` has ended."""
    if sys.platform != "linux":
        return  # the end of the connection ends this process
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return  # a kernel before Linux 5.3
    if os.getppid() != parent:
        os._exit(1)

    def wait() -> None:
        select.select([descriptor], [], [])
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


if __name__ == "__main__":
    main()

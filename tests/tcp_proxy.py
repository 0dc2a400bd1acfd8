"""Stand between a client and a server, and cut or hold up what passes."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable


class TcpProxy:
    """Passes connections on to a server, and cuts them.

    Args:
        target: Host and port of the server.
        rewritten: What becomes of the bytes of an answer, as many as before.

    Attributes:
        port: Where it listens.
        cut_after: Bytes of an answer after which a connection is cut; 0: none is.
        delay_s: Seconds that each piece of an answer is held up.
        refuses: Whether new connections are closed at once.
        refuses_next: How many of the next ones are.
        cuts: Connections that were cut.
        passed: Bytes that were passed on.
    """

    def __init__(
        self, target: tuple[str, int], *, rewritten: Callable[[bytes], bytes] = lambda some: some
    ) -> None:
        self._target, self._rewritten = target, rewritten
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cut_after, self.delay_s, self.cuts, self.passed = 0, 0.0, 0, 0
        self.refuses, self.refuses_next = False, 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        for each in [*self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                self.cuts += 1

    def close(self) -> None:
        self.refuses = True
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.refuses or self.refuses_next:
                    self.refuses_next -= not self.refuses
                    client.close()
                    continue
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        answered = 0
        with client, socket.create_connection(self._target) as server:
            self._open |= {client, server}
            with contextlib.suppress(OSError):
                while True:
                    for each in select.select([client, server], [], [])[0]:
                        some = each.recv(1 << 14)
                        if each is server:
                            answered += len(some)
                            time.sleep(self.delay_s)
                            some = self._rewritten(some)
                        self.passed += len(some)
                        if not some or 0 < self.cut_after < answered:
                            self.cuts += bool(some)
                            return
                        (client if each is server else server).sendall(some)
            self._open -= {client, server}

"""Streams of bytes from files, commands and sockets; a stream that breaks off is an error."""

from __future__ import annotations

import gzip
import os
import socket
import threading
from contextlib import closing

import psutil
import pyarrow
import pytest

from penstock.core.sample import RecordError
from penstock.datasets.files.byte_streams import ByteStream, StreamError, command_of
from tests.waiting import wait_until

DATA = bytes(range(256)) * 5000


def served(*parts: bytes, keep: threading.Event | None = None) -> str:
    """Return the address of a server on this machine that sends `parts` to one client."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            for part in parts:
                connection.sendall(part)
            if keep is not None:
                keep.wait(120)

    threading.Thread(target=serve, daemon=True).start()
    return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["file", "gzip", "zstd", "pipe", "tcp"])
def name(request, tmp_path) -> str:
    file = tmp_path / "some data"
    file.write_bytes(DATA)
    if request.param == "gzip":
        file.write_bytes(gzip.compress(DATA, 1))
    if request.param == "zstd":
        file.write_bytes(pyarrow.Codec("zstd").compress(DATA, asbytes=True))
    if request.param == "pipe":
        return f"pipe:cat '{file}'"
    if request.param == "tcp":
        return served(DATA)
    return str(file)


def test_every_kind_gives_the_same_bytes(name):
    stream = ByteStream(name, timeout_s=60)
    assert stream.read(700_000) == DATA[:700_000]
    assert stream.skip(100_001) == 100_001 and stream.offset == 800_001
    assert stream.read(9) == DATA[800_001:800_010]
    assert stream.skip(10_000_000) == len(DATA) - 800_010
    assert stream.read(10) == b"" and stream.offset == len(DATA)
    stream.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo some; exit 3'", "exit code 3"),
        ("sh -c 'kill -9 $$'", "signal 9"),
        ("no-such-command-here x", "No such file"),
    ],
)
def test_a_command_that_fails_is_an_error(command, said):
    with pytest.raises(StreamError, match=said):
        with closing(ByteStream(f"pipe:{command}", timeout_s=60)) as stream:
            stream.read(100)


def test_no_shell_reads_a_command(tmp_path):
    stream = ByteStream(f"pipe:echo $HOME; touch {tmp_path}/made", timeout_s=60)
    assert stream.read(1000) == f"$HOME; touch {tmp_path}/made\n".encode()
    stream.close()
    assert not (tmp_path / "made").exists()
    with pytest.raises(ValueError, match="lacks a command"):
        command_of("pipe: ")
    with pytest.raises(ValueError, match="quotation"):
        command_of("pipe:cat 'a")


def test_a_stream_that_stalls_is_an_error():
    keep = threading.Event()
    for name in ("pipe:sh -c 'echo a; sleep 60'", served(b"a\n", keep=keep)):
        stream = ByteStream(name, timeout_s=0.3)
        with pytest.raises(StreamError, match=r"gave no byte within timeout_s=0.3 s"):
            stream.read(100)
        stream.close()
    keep.set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    with pytest.raises(StreamError, match=r"cannot be opened: .*refused; start what sends"):
        ByteStream(f"tcp://127.0.0.1:{free}", timeout_s=0.1)


def test_closing_ends_a_command_and_what_it_started():
    stream = ByteStream("pipe:sh -c 'sleep 300 & echo $!; echo $$; wait'", timeout_s=60)
    started = [psutil.Process(int(stream.readline(100))) for _ in range(2)]
    stream.close()
    for each in started:
        wait_until(lambda each=each: not each.is_running() or each.status() == "zombie", each.name)


@pytest.mark.parametrize("method", ["gzip", "zstd"])
def test_damaged_compression_is_a_record_error(method, tmp_path):
    file = tmp_path / "cut"
    file.write_bytes(pyarrow.Codec(method).compress(os.urandom(100_000), asbytes=True)[:50_000])
    stream = ByteStream(str(file), timeout_s=60)
    with pytest.raises(RecordError, match="damaged or cut off"):
        stream.read(100_000)
    stream.close()

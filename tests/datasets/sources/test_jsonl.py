"""Lines of JSON as a stream, with images in files beside them."""

from __future__ import annotations

import gzip
import json
import pickle
import socket
import threading
from typing import Any

import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.sources.jsonl import JsonlSource
from tests.contracts.source import check_source


@pytest.fixture
def file(tmp_path):
    (tmp_path / "images").mkdir()
    lines = []
    for n in range(4):
        (tmp_path / "images" / f"{n}.jpg").write_bytes(b"jpeg %d" % n)
        lines.append(json.dumps({"image": f"images/{n}.jpg", "label": n, "box": [n, 1]}))
    (tmp_path / "a.jsonl").write_text(lines[0] + "\n\n" + "\n".join(lines[1:]))
    return tmp_path / "a.jsonl"


def records(path: Any, **arguments: Any) -> list[Any]:
    source = pickle.loads(pickle.dumps(JsonlSource(str(path), **arguments)))
    found = []
    for shard in source.shards(0):
        reader = source.read(shard, 0)
        found += [item if isinstance(item, BadRecord) else source.load(item) for item in reader]
        reader.close()
    return found


def test_lines_are_records_and_paths_their_content(file):
    found = records(file)
    assert [record.key for record in found] == [f"images/{n}.jpg" for n in range(4)]
    assert found[2].fields == {"image": b"jpeg 2", "label": 2, "box": [2, 1]}
    packed = file.with_name("b.jsonl.gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert records(packed) == found
    assert records(f"pipe:cat {file}", root=str(file.parent)) == found
    check_source(lambda: JsonlSource(str(file)), [record.key for record in found])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "Expecting"),
        (b"[1]", "expected an object"),
        (b'{"image": "../secret"}', "leads out"),
        (b'{"image": "/etc/passwd"}', "leads out"),
        (b'{"image": "none.jpg"}', "cannot be read"),
        (b'{"label": "cat"}', "classes=[...]"),
        (b"[" * 100_000, ""),
        (b"\xff\xfe", ""),
    ],
)
def test_a_damaged_line_spoils_no_other(line, said, file):
    good = b'{"label": 1}'
    file.write_bytes(good + b"\n" + line + b"\n" + good)
    first, bad, last = records(file)
    assert isinstance(bad, BadRecord) and said in bad.cause and "\n" not in bad.cause
    assert bad.key == "a.jsonl:2" and first.fields == last.fields == {"label": 1}


def test_a_link_does_not_lead_out(file, tmp_path_factory):
    secret = tmp_path_factory.mktemp("other") / "secret"
    secret.write_text("x")
    (file.parent / "link.jpg").symlink_to(secret)
    file.write_text('{"image": "link.jpg"}')
    (bad,) = records(file)
    assert isinstance(bad, BadRecord) and "leads out" in bad.cause


def test_damage_that_ends_a_file_says_so(file):
    packed = file.with_name("b.jsonl.gz")
    packed.write_bytes(gzip.compress(file.read_bytes() * 1000)[:300])
    bad = records(packed)[-1]
    assert isinstance(bad, BadRecord) and bad.ends_shard and "lost" in bad.cause


def test_a_line_that_breaks_off_is_no_end(file):
    assert [each.fields for each in records("""pipe:printf '{"a": 1}\\n{"a": 2}'""")] == [
        {"a": 1}, {"a": 2}
    ]  # fmt: skip
    with pytest.raises(StreamError, match="in the middle of a line: it broke off"):
        records("""pipe:printf '{"a": 1}\\n{"a":'""")


def test_a_socket_that_ends_or_breaks_off_is_connected_to_again(caplog):
    sent = [b'{"n": 0}\n{"n": 1}\n', b'{"n": 2}\n{"n": ', b'{"n": 3}\n', b'{"n": 4}\n{"']
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            for part in sent:
                with server.accept()[0] as connection:
                    connection.sendall(part)

    threading.Thread(target=serve, daemon=True).start()
    address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    source = JsonlSource(address, paths=[], reconnects=3)
    reader = source.read(address, 0)
    found = [source.load(next(reader)) for _ in range(5)]
    assert [record.fields["n"] for record in found] == [0, 1, 2, 3, 4]
    assert [record.key.removeprefix(address) for record in found] == [
        ":1", ":2", "#1:1", "#2:1", "#3:1",
    ]  # fmt: skip
    [said] = [record.message for record in caplog.records]
    assert "ended in the middle of a line" in said and "connecting again" in said
    with pytest.raises(StreamError, match="ended in the middle of a line"):
        next(reader)
    reader.close()


def test_only_a_socket_is_connected_to_again(file):
    with pytest.raises(ValueError, match=r"reconnects: 2 given, but .* is a file; leave it out"):
        JsonlSource(str(file), reconnects=2)

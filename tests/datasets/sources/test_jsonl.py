"""Lines of JSON as a stream, with images in files beside them."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import Any

import pytest

from penstock.core.sample import BadRecord
from penstock.datasets.sources.jsonl import JsonlSource
from tests.contracts.source import check_source, loaded


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
    return [record for shard in source.shards(0) for record in loaded(source, shard)]


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
        (b'{"image": "link.jpg"}', "leads out"),
        (b'{"label": "cat"}', "classes=[...]"),
        (b"[" * 100_000, ""),
        (b"\xff\xfe", ""),
    ],
)
def test_a_damaged_line_spoils_no_other(line, said, file):
    (file.parent / "link.jpg").symlink_to("/etc/passwd")
    good = b'{"label": 1}'
    file.write_bytes(good + b"\n" + line + b"\n" + good)
    first, bad, last = records(file)
    assert isinstance(bad, BadRecord) and said in bad.cause and "\n" not in bad.cause
    assert bad.key == "a.jsonl:2" and first.fields == last.fields == {"label": 1}


def test_damage_that_ends_a_file_says_so(file):
    packed = file.with_name("b.jsonl.gz")
    packed.write_bytes(gzip.compress(file.read_bytes() * 1000)[:300])
    bad = records(packed)[-1]
    assert isinstance(bad, BadRecord) and bad.ends_shard and "lost" in bad.cause


def test_a_last_line_needs_no_end_and_is_bad_if_it_breaks_off(file):
    first, bad = records("""pipe:printf '{"a": 1}\\n{"a":'""")
    assert first.fields == {"a": 1} and isinstance(bad, BadRecord)
    whole = records("""pipe:printf '{"a": 1}\\n{"a": 2}'""")
    assert [each.fields for each in whole] == [{"a": 1}, {"a": 2}]

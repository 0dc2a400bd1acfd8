"""A CSV parsed at once is what its rows are one by one, in value and complaint."""

from __future__ import annotations

import csv
import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datasets.records.label_tables import iter_csv
from penstock.datasets.storages.csv import CsvStorage
from tests.contracts.storage import read_all

MISSING = ("", "NA", "nan")
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
FLOAT = re.compile(r"[+-]?(((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|inf)")
ODD = ["a,b", 'q"q', "two\nlines", "x\r\ny", "é", "\u2028", "\0", "NA", "", "../a", "/etc",
       "a/../b"]  # fmt: skip
NUMBERS = ["0", "-3", "+7", "007", "1.5", ".5", "5.", "1e5", "1e", "-inf", "Inf", "nan", "1_0",
           " 1", "1\n2", "9" * 18, "9" * 19, "９"]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(ODD + NUMBERS),
    st.integers(-50, 50).map(str),
    # Python's writer leaves a lone \r without quotes, and its reader refuses that.
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=4),
)
TABLES = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(TEXTS, min_size=width, max_size=width), max_size=12)
)
WRITTEN = st.fixed_dictionaries({
    "delimiter": st.sampled_from(",;\t"),
    "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    "lineterminator": st.sampled_from(["\n", "\r\n"]),
})  # fmt: skip


def content_of(rows, empty_lines, *, bom, cut, **options):
    """A file with a header a, b, c, and empty lines above some rows."""
    text = io.StringIO()
    writer = csv.writer(text, **options)
    for number, row in enumerate([list("abc")[: len(rows[0]) if rows else 1], *rows]):
        text.write(options["lineterminator"] * (number in empty_lines))
        writer.writerow(row)
    content = text.getvalue().encode()
    return b"\xef\xbb\xbf" * bom + (content.rstrip(b"\r\n") if cut else content)


FILES = st.builds(
    lambda rows, empty, bom, cut, options: (
        rows, content_of(rows, empty, bom=bom, cut=cut, **options), options["delimiter"]
    ),
    TABLES, st.sets(st.integers(0, 12), max_size=3), st.booleans(), st.booleans(), WRITTEN,
)  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("csv")
    return (folder / f"{n}.csv" for n in itertools.count())


def typed(text, kind):
    if text in MISSING:
        assert kind != "int"
        return float("nan") if kind == "float" else None
    if kind == "str":
        return text
    if "_" in text or (kind == "int" and not re.fullmatch(r"[+-]?[0-9]{1,18}", text)):
        raise ValueError(text)
    return int(text) if kind == "int" else float(text)


def row_by_row(path, delimiter, types, key):
    """Read keys and values one by one; an exception stands for any fault."""
    (_, header), *rows = iter_csv(str(path), delimiter=delimiter, where="t")
    assert rows and len(set(header)) == len(header) and set(types) <= set(header)
    columns = dict(zip(header, zip(*(values for _, values in rows), strict=True), strict=True))
    found = {}
    for name, texts in columns.items():
        there = [text for text in texts if text not in MISSING]
        kind = types.get(name) or "str"
        if name not in types and all(map(FLOAT.fullmatch, there)):
            whole = len(there) == len(texts) and all(map(INTEGER.fullmatch, there))
            kind = "int" if whole else "float"
        if name != key:
            found[name] = [typed(text, kind) for text in texts]
    keys = [f"{n:08d}" for n in range(len(rows))] if key is None else list(columns[key])
    assert len(set(keys)) == len(keys) and (key is None or not set(keys) & set(MISSING))
    return keys, found


@given(file=FILES)
def test_rows_lie_where_they_were_written(paths, file):
    rows, content, delimiter = file
    path = next(paths)
    path.write_bytes(content)
    _, *found = iter_csv(str(path), delimiter=delimiter, where="t")
    assert [values for _, values in found] == rows
    lines = content.decode("utf-8-sig").split("\n")
    for line, values in found:
        text = io.StringIO("\n".join(lines[line - 1 :]), newline="")
        assert next(csv.reader(text, delimiter=delimiter)) == values


@given(
    file=FILES,
    key=st.sampled_from([None, None, "a", "b"]),
    types=st.dictionaries(st.just("a"), st.sampled_from(["int", "float", "str"])),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.sampled_from(b'"\r\n,\xff\x00'))),
)
def test_a_file_holds_what_its_rows_hold(paths, file, key, types, damage):
    _, content, delimiter = file
    if damage is not None:
        at = damage[0] % len(content)
        content = content[:at] + bytes([damage[1]]) + content[at:]
    path = next(paths)
    path.write_bytes(content)
    types = {name: kind for name, kind in types.items() if name != key}
    storage = CsvStorage(
        str(path), key_column=key, types=types, missing=MISSING, delimiter=delimiter
    )
    try:
        keys, columns = row_by_row(path, delimiter, types, key)
    except (ValueError, AssertionError, KeyError):
        with pytest.raises(ValueError, match=r"csv .*: "):
            len(storage)
        return
    records = read_all(storage)
    assert [record.key for record in records] == keys
    for name, values in columns.items():
        assert [repr(record.fields[name]) for record in records] == list(map(repr, values))


def test_the_line_of_a_fault_is_named(paths):
    rows = [["k", "v"], ["x", "1"], ["y", "2"], ["x", "3"], ["z", "no"], ["w"]]
    for stop, message in ((6, "line 6: got 1 values, expected 2"),
                          (4, "'x' stands twice, in the records 0 and 2"), (3, "")):  # fmt: skip
        path = next(paths)
        path.write_text("".join(f"{','.join(row)}\n" for row in rows[:stop]))
        storage = CsvStorage(str(path), key_column="k", types={"v": "int"})
        if not message:
            assert [record.fields["v"] for record in read_all(storage)] == [1, 2]
            continue
        with pytest.raises(ValueError, match=message):
            len(storage)


def test_long_values_are_read(paths):
    path, long = next(paths), "x" * 200_000
    path.write_bytes(b"a,b\n1," + long.encode() + b"\n2,y\n")
    assert [record.fields for record in read_all(CsvStorage(str(path)))] == [
        {"a": 1, "b": long},
        {"a": 2, "b": "y"},
    ]

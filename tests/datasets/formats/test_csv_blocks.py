"""Rows of a CSV read many at a time are what they are one by one, in place, value and complaint."""

from __future__ import annotations

import csv
import io
import zlib
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.formats import csv_blocks
from datasets.formats.csv_blocks import iter_blocks
from datasets.formats.csv_rows import ColumnGuess, convert, convert_column, iter_rows
from datasets.formats.csv_table import find_csv_roles, scan_csv
from tests.contracts.equality import assert_same

MISSING = frozenset({"", "NA", "nan"})
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
SIZES = [(1, 1), (3, 16), (1024, 1 << 18)]


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
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("csv") / "t.csv"


@given(file=FILES, size=st.sampled_from(SIZES))
def test_rows_lie_where_they_were_written(path, file, size):
    rows, content, delimiter = file
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "_BLOCK_ROWS", size[0])
        patch.setattr(csv_blocks, "_READ_BYTES", size[1])
        header, *blocks = iter_blocks(str(path), delimiter=delimiter, where="t")
    assert len(header.rows) == 1
    assert [row for block in blocks for row in block.rows] == rows
    assert max((len(block.rows) for block in blocks), default=0) <= size[0]
    for block in blocks:
        assert block.columns == list(zip(*block.rows, strict=True))
        for raw, line, offset in zip(block.raw, block.lines, block.offsets.tolist(), strict=True):
            assert content[offset : offset + len(raw)] == raw
            assert content[:offset].count(b"\n") == line - 1


def looked_at(path, delimiter, size, *, types, **columns):
    """All that a scan finds, or what it complains of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "_BLOCK_ROWS", size[0])
        patch.setattr(csv_blocks, "_READ_BYTES", size[1])
        try:
            header = next(iter_rows(str(path), delimiter=delimiter, where="t"))
            roles = find_csv_roles(header.values, **columns, columns=None, where="t")
            scan = scan_csv(
                str(path), roles, delimiter=delimiter, types=types, missing=MISSING, where="t"
            )
        except ValueError as error:
            return str(error)
    return asdict(scan)


COLUMNS = st.sampled_from([None, None, "a", "b"])


@given(
    file=FILES,
    roles=st.fixed_dictionaries({f"{name}_column": COLUMNS for name in ("image", "label", "key")}),
    types=st.dictionaries(st.just("a"), st.sampled_from(["int", "float", "str"])),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.sampled_from(b'"\r\n,\xff\x00'))),
)
def test_where_blocks_end_changes_nothing(path, file, roles, types, damage):
    """With one row in each, one is looked at after the other."""
    _, content, delimiter = file
    if damage is not None:
        at = damage[0] % len(content)
        content = content[:at] + bytes([damage[1]]) + content[at:]
    path.write_bytes(content)
    alone, *others = (looked_at(path, delimiter, size, types=types, **roles) for size in SIZES)
    for other in others:
        if isinstance(alone, str) or isinstance(other, str):
            assert other == alone
        else:
            assert_same(other, alone)
    if not isinstance(alone, str):
        spans = zip(alone["offsets"].tolist(), alone["row_bytes"].tolist(), strict=True)
        sums = [zlib.crc32(content[start : start + size]) for start, size in spans]
        assert alone["crc32"].tolist() == sums
        assert alone["crc32"].dtype == np.uint32


def test_what_is_wrong_is_said_of_the_first_row(path):
    rows = [["k", "v"], ["x", "1"], ["y", "2"], ["x", "3"], ["z", "no"], ["w"], ["z", "4"]]
    for stop, said in [(7, "line 4: 'x' stands here and in line 2"), (3, ""), (4, "line 4: 'x'")]:
        path.write_text("".join(f"{','.join(row)}\n" for row in rows[:stop]))
        options = {"image_column": None, "label_column": None, "key_column": "k"}
        found = looked_at(path, ",", SIZES[-1], types={"v": "int"}, **options)
        assert said in found if said else isinstance(found, dict)
    rows[3] = ["u", "3"]
    path.write_text("".join(f"{','.join(row)}\n" for row in rows))
    assert looked_at(path, ",", SIZES[-1], types={"v": "int"}, **options) == (
        "t: line 5: 'no' is no int"
    )


@given(texts=st.lists(TEXTS), kind=st.sampled_from(["int", "float", "str"]))
def test_a_column_is_converted_as_its_values_are(texts, kind):
    try:
        wanted = [convert(text, kind, MISSING) for text in texts]
    except ValueError:
        with pytest.raises(ValueError, match=f"is no {kind}|is missing"):
            convert_column(texts, kind, MISSING)
        return
    assert list(map(repr, convert_column(texts, kind, MISSING))) == list(map(repr, wanted))


@given(parts=st.lists(st.lists(st.sampled_from([*NUMBERS, "3", "2.5", "", "x"]))))
def test_a_guess_is_the_narrowest_that_holds_every_value(parts):
    def guess(*parts):
        guess = ColumnGuess(MISSING)
        for part in parts:
            guess.add(part)
        return guess.type

    assert guess(["1\n2"]) == guess(["3", "1\n2"]) == "str"
    alone = {guess([text]) for part in parts for text in part}
    assert guess(*parts) == next((kind for kind in ("str", "float") if kind in alone), "int")

"""A CSV parsed at once is what its rows are one by one, in value and complaint."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datasets.columnar.names import find_roles
from penstock.datasets.records.labels import iter_csv
from penstock.datasets.storages.csv.reader import CsvReader, convert

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
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("csv") / "t.csv"


def of_rows(path, delimiter, types, **columns):
    """What a file holds, a row and a value after the other; or what is wrong with the first."""
    every = iter_csv(str(path), delimiter=delimiter, where="t")
    _, header = next(every)
    if len(set(header)) < len(header):
        raise ValueError("stands twice; rename one")
    roles = find_roles(header, **columns, columns=None, where="t")
    for name in types:
        if name not in roles.places:
            raise ValueError(f"t: types: no column {name!r}; columns: {', '.join(header)}")
    roles = replace(roles, key=roles.key or roles.image)
    rows = list(every)
    if not rows:
        raise ValueError("t: it has a header and no row; nothing to read")

    def guess(name):
        there = [values[roles.places[name]] for _, values in rows]
        some = [text for text in there if text not in MISSING]
        if not all(map(FLOAT.fullmatch, some)):
            return "str"
        whole = all(map(INTEGER.fullmatch, some)) and len(some) == len(there)
        return "int" if whole else "float"

    named = [name for name in (*roles.fields, roles.label) if name is not None]
    kinds = {name: types.get(name) or guess(name) for name in named}
    found = {"keys": [], "labels": [], **{name: [] for name in roles.fields}}
    lines = {}
    for line, values in rows:
        value = {name: values[place] for name, place in roles.places.items()}
        try:
            image, label = value.get(roles.image), value.get(roles.label, "x").strip()
            if image is not None and (image[:1] == "/" or "\0" in image or image[:2] == ".."):
                how = ("set {}", "type {}=/")[image[:1] == "/"].format("dataset.storage.root")
                raise ValueError(f"{image!r} leads out of its folder /d; if that is meant, {how}")
            if label in MISSING:
                raise ValueError(f"the label is missing ({label!r}); fill it in, or take the row "
                                 f"out")  # fmt: skip
            if roles.label is not None:
                as_typed = convert(value[roles.label], kinds[roles.label], MISSING)
                found["labels"].append(as_typed if kinds[roles.label] == "int" else label)
            if roles.key is not None:
                key = value[roles.key]
                if key in MISSING:
                    raise ValueError(f"{roles.key!r} is missing ({key!r}); fill it in, or take "
                                     f"the row out")  # fmt: skip
                if lines.setdefault(key, line) != line:
                    raise ValueError(
                        f"{key!r} stands here and in line {lines[key]}; name one whose values "
                        f"differ: dataset.storage.key_column"
                    )
                found["keys"].append(key)
            for name in roles.fields:
                found[name].append(convert(value[name], kinds[name], MISSING))
        except ValueError as error:
            raise ValueError(f"t: line {line}: {error}") from None
    return found


def at_once(path, delimiter, types, **columns):
    reader = CsvReader(str(path), delimiter=delimiter, missing=MISSING, types=types, root="/d",
                       where="t")  # fmt: skip
    table = reader.read(**columns, columns=None)
    fields = {
        name: column.tolist() if column.kind == "str" else column.values.tolist()
        for name, column in table.columns.items()
        if name != table.image
    }
    labels = [] if table.labels is None else table.labels
    labels = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    return {"keys": table.keys or [], "labels": labels, **fields}


@given(file=FILES)
def test_rows_lie_where_they_were_written(path, file):
    rows, content, delimiter = file
    path.write_bytes(content)
    _, *found = iter_csv(str(path), delimiter=delimiter, where="t")
    assert [values for _, values in found] == rows
    lines = content.decode("utf-8-sig").split("\n")
    for line, values in found:
        text = io.StringIO("\n".join(lines[line - 1 :]), newline="")
        assert next(csv.reader(text, delimiter=delimiter)) == values


COLUMNS = st.sampled_from([None, None, "a", "b"])


@given(
    file=FILES,
    roles=st.fixed_dictionaries({f"{name}_column": COLUMNS for name in ("image", "label", "key")}),
    types=st.dictionaries(st.just("a"), st.sampled_from(["int", "float", "str"])),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.sampled_from(b'"\r\n,\xff\x00'))),
)
def test_a_file_holds_what_its_rows_hold(path, file, roles, types, damage):
    _, content, delimiter = file
    if damage is not None:
        at = damage[0] % len(content)
        content = content[:at] + bytes([damage[1]]) + content[at:]
    path.write_bytes(content)
    try:
        expected = of_rows(path, delimiter, types, **roles)
    except ValueError as error:
        with pytest.raises(ValueError) as raised:
            at_once(path, delimiter, types, **roles)
        assert str(raised.value).endswith(str(error))
        return
    found = at_once(path, delimiter, types, **roles)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert list(map(repr, values)) == list(map(repr, expected[name]))


def test_what_is_wrong_is_said_of_the_first_row(path):
    rows = [["k", "v"], ["x", "1"], ["y", "2"], ["x", "3"], ["z", "no"], ["w"]]
    said = {
        6: "line 6: got 1 values, expected 2",  # before any value is looked at
        5: "line 4: 'x' stands here and in line 2",
        4: "line 4: 'x' stands here and in line 2",
        3: "",
    }
    options = {"image_column": None, "label_column": None, "key_column": "k"}
    for stop, message in said.items():
        path.write_text("".join(f"{','.join(row)}\n" for row in rows[:stop]))
        if not message:
            assert at_once(path, ",", {"v": "int"}, **options)["v"] == [1, 2]
            continue
        with pytest.raises(ValueError, match=message):
            at_once(path, ",", {"v": "int"}, **options)
    rows[3:] = [["u", "3"], ["z", "no"]]
    path.write_text("".join(f"{','.join(row)}\n" for row in rows))
    with pytest.raises(ValueError, match="t: line 5: 'no' is no int"):
        at_once(path, ",", {"v": "int"}, **options)


def test_long_values_are_read(path):
    long = "x" * 200_000
    path.write_bytes(b"a,b\n1," + long.encode() + b"\n2,y\n")
    options = {"image_column": None, "label_column": None, "key_column": None}
    assert at_once(path, ",", {}, **options) == {
        "keys": [], "labels": [], "a": [1, 2], "b": [long, "y"],
    }  # fmt: skip

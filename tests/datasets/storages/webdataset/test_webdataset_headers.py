"""Headers of tar archives: what the standard library and others write, and damage anywhere."""

import io
import tarfile

import numpy as np
import pytest

from penstock.core.sample import RecordError
from penstock.datasets.storages.webdataset.headers import iter_members

LONG = "deep/" * 30 + "x" * 120 + ".jpg"
NAMES = ["a.jpg", "dir/b.cls", "ünï 日本.txt", LONG, "d" * 95 + ".json", "p" * 90 + "/" + "q" * 90]


def archive(members, kind=tarfile.GNU_FORMAT, **options):
    """The bytes of an archive that the standard library writes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for option, value in options.items():
                setattr(info, option, value)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def found(data):
    """Name and content of every file."""
    data = bytes(data)
    members = iter_members(lambda at, size: data[at : at + size], end=len(data), has_end=False)
    return [(m.name.decode(), data[m.offset : m.offset + m.size_bytes]) for m in members]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_and_sizes_in_every_format(kind):
    rng = np.random.default_rng(0)
    names = [n for n in NAMES if kind != tarfile.USTAR_FORMAT or n != LONG]
    sizes = (0, 1, 511, 512, 513, 2000)
    members = [(name, rng.bytes(size)) for name, size in zip(names, sizes, strict=False)]
    options = {"pax_headers": {"comment": "ünï\nmore"}} if kind == tarfile.PAX_FORMAT else {}
    data = archive(members, kind, **options)
    assert found(data) == members
    assert found(data[: data.rindex(members[-1][1][-1:]) + 1]) == members


def header(kind, content=b"", **options):
    """A header of a type, and its content in whole blocks."""
    info = tarfile.TarInfo("h.jpg")
    info.type, info.size = kind, len(content)
    for option, value in options.items():
        setattr(info, option, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *((header(bytes([kind])), "is a link, a device or a sparse file") for kind in b"1236Z"),
        (header(b"0", size=-5), "a header has the size -5"),
        (header(b"x", b"13 size=-123\n"), "a header has the size -123"),
        (header(b"x", b"0 path=a\n"), "a header is damaged"),
        (header(b"x", size=8_589_934_591), "an extended header of 8,589,934"),
        (header(b"x", b"9 path=a\n") + bytes(1024), "a header is damaged"),
        (header(b"L", b"a\0") * 5000, "a header is damaged"),
    ],
)  # fmt: skip
def test_what_is_no_plain_file_is_refused(data, said):
    with pytest.raises(RecordError, match=said) as error:
        found(data + archive([("a.jpg", b"")]))
    assert "\n" not in str(error.value)

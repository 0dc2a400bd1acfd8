"""Files with mutations: a storage gives records, bad records, or an error of one line.

Never an exception that needs its traceback, a crash, a hang, or memory that nobody has.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import resource
import shutil
import signal
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.registry import components, find
from penstock.core.sample import BadRecord, Record
from penstock.core.user_errors import is_explained
from penstock.datasets.annotations.boxes_csv import CsvBoxes
from penstock.datasets.annotations.coco import CocoAnnotations
from penstock.datasets.annotations.voc import VocAnnotations
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.sources.jsonl import JsonlSource
from penstock.datasets.storages.webdataset import WebDatasetSource
from penstock.datasets.writing import write_storage
from penstock.pipeline.config.discovery import load_builtin
from penstock.transforms.decode.image import ImageDecoder
from tests.contracts.writer import ListedRecords
from tests.datasets.annotations.annotated import open_annotated, write_images
from tests.encoded_images import JPEGS, RGB, encode

load_builtin()
WRITERS = [
    # A damaged HDF5 file is looked at in a process of its own, which takes seconds.
    pytest.param(writer.name, marks=[pytest.mark.slow] * (writer.name == "hdf5"))
    for writer in components("writer")
    if writer.name != "image_folder"  # files of others, whose images are below
]
_MEMORY_BYTES = 3 << 30
_SECONDS = 60
_TEXTS = (b"[" * 3000, b"{" * 300, b"1e999", b"9" * 400, b"-1", b'"\\ud800"', b"[1]", b"null",
          b"NaN", b"\xff\xfe", b"\0", b"\n", b'"', b"<", b"&#x0;", b"0" * 30)  # fmt: skip
_NUMBERS = tuple(
    number.to_bytes(size, order, signed=True)
    for number, size in ((-1, 8), (2**62, 8), (2**31 - 1, 4), (-(2**31), 4), (2**16, 4), (0, 8))
    for order in ("little", "big")
)


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one to three mutations."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        stop = at + int(rng.integers(1, 2 ** rng.integers(1, 11)))
        kind = rng.integers(7)
        if kind < 2 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del data[at:stop]
        elif kind == 3:
            data[at:at] = data[at // 2 : at // 2 + stop - at]
        elif kind == 4:
            number = _NUMBERS[rng.integers(len(_NUMBERS))]
            data[at : at + len(number)] = number
        elif kind == 5:
            text = _TEXTS[rng.integers(len(_TEXTS))]
            data[at : at + int(rng.integers(3)) * len(text) // 2] = text
        else:
            del data[at:]
    return bytes(data)


@contextmanager
def little_memory_and_time() -> Iterator[None]:
    """No more than some GB beyond what the process has, and a minute."""

    def stop(*_: Any) -> None:
        raise TimeoutError("hangs")

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def check(
    folder: Path, read: Callable[[Path], Any], count: int, form: str, work: Path
) -> dict[str, int]:
    """Read the files in a folder with mutations, the form's own; how often that ended how."""
    seed = zlib.crc32(form.encode())
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    ends = {"read": 0, "refused": 0}
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        copy = work / str(number)
        shutil.copytree(folder, copy)
        file = copy / files[rng.integers(len(files))].relative_to(folder)
        file.write_bytes(mutated(file.read_bytes(), rng))
        try:
            with little_memory_and_time():
                read(copy)
            ends["read"] += 1
        except (ValueError, StreamError) as error:
            assert is_explained(error) and "\n" not in str(error), (
                f"mutation {number} of {file.name}"
            )
            ends["refused"] += 1
        except Exception as error:
            error.add_note(f"mutation {number} of {file.name}")
            raise
        shutil.rmtree(copy)
    return ends


def samples() -> Iterator[ListedRecords]:
    """Some records: of all that there is, and of arrays alone."""
    names = ("cat", "dog")
    full = {
        f"ü/{n}.jpg": {
            "image": JPEGS["420"], "label": n % 2, "text": "a" * n, "score": n / 3,
            "boxes": np.arange(4 * n, dtype=np.float32).reshape(-1, 4),
            "about": {"list": [n, None, "x"]},
        }
        for n in range(7)
    }  # fmt: skip
    yield ListedRecords(full, names)
    image = np.zeros((4, 5, 3), np.uint8)
    arrays = {str(n): {"image": image + n, "label": n % 2, "score": n / 3} for n in range(7)}
    yield ListedRecords(arrays, names)


def write_packed(name: str, folder: Path) -> Callable[[Path], Any]:
    writer: Any = find(f"writer/{name}")
    make: Any = writer.target()
    for number, records in enumerate(samples()):
        with suppress(ValueError):
            write_storage(make, folder / f"data{number}", records)
            break
    data = f"data{number}"
    target: Any = find(f"storage/{name}")

    def read(copy: Path) -> None:
        storage = target.target(str(copy / data), **make.storage_arguments)
        for record in storage.read(np.arange(len(storage))):
            if isinstance(record, BadRecord):
                assert "\n" not in record.cause
        storage = pickle.loads(pickle.dumps(storage))
        storage.read(np.arange(len(storage))[::-2])

    return read


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("count", [15, pytest.param(2000, marks=pytest.mark.slow)])
def test_packed_files(tmp_path, name, count):
    (tmp_path / "whole").mkdir()
    read = write_packed(name, tmp_path / "whole")
    ends = check(tmp_path / "whole", read, count, name, tmp_path)
    assert ends["refused"] and sum(ends.values()) == count


IMAGES = {
    "jpg": JPEGS["420"], "progressive": JPEGS["progressive"], "png": encode(RGB, "PNG"),
    "gif": encode(RGB, "GIF"), "tiff": encode(RGB, "TIFF", compression="tiff_deflate"),
    "webp": encode(RGB, "WEBP"), "bmp": encode(RGB, "BMP"),
}  # fmt: skip


def write_images_of_all_kinds(folder: Path) -> Callable[[Path], Any]:
    for name, data in IMAGES.items():
        (folder / name).write_bytes(data)
    decode = ImageDecoder()

    def read(copy: Path) -> None:
        refused = None
        for number, name in enumerate(IMAGES):
            try:
                decode(Record(number, name, {"image": (copy / name).read_bytes()}))
            except ValueError as error:
                refused = error
        if refused is not None:
            raise refused

    return read


def write_jsonl(folder: Path) -> Callable[[Path], Any]:
    lines = [{"key": f"k{n}", "label": n % 2, "boxes": [[1, 2, n, 4]], "t": "ü"} for n in range(5)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return lambda copy: _stream(JsonlSource(str(copy / "a.jsonl"), classes=2))


def write_tar(folder: Path) -> Callable[[Path], Any]:
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        for n in range(6):
            for name, data in ("jpg", b"image"), ("cls", b"1"), ("json", b'{"a": [1]}'):
                info = tarfile.TarInfo(f"{'é' * 60}{n}.{name}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    return lambda copy: _stream(WebDatasetSource(f"pipe:cat {copy / 'a.tar'}", classes=2))


def _stream(source: Any) -> None:
    for shard in source.shards(0):
        items = source.open(shard)
        try:
            for item in items:
                record = item if isinstance(item, BadRecord) else source.load(item)
                record.key.encode("utf-8", "surrogateescape")
                if isinstance(record, BadRecord):
                    assert "\n" not in record.cause
        finally:
            items.close()


COCO = {
    "images": [{"id": n, "file_name": f"{n}.jpg", "width": 9, "height": 9} for n in range(4)],
    "categories": [{"id": 3, "name": "cat", "keypoints": ["nose"]}],
    "annotations": [
        {"id": n, "image_id": n % 4, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 0,
         "keypoints": [1, 2, 2]}
        for n in range(6)
    ],
}  # fmt: skip
VOC = """<annotation><filename>0.jpg</filename><size><width>9</width><height>9</height></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax>
<ymax>5</ymax></bndbox></object></annotation>"""


def write_labels(folder: Path) -> Callable[[Path], Any]:
    write_images(folder / "images", [f"{n}.jpg" for n in range(4)])
    (folder / "images/a.json").write_text(json.dumps(COCO))
    (folder / "images/voc").mkdir()
    (folder / "images/voc/0.xml").write_text(VOC)
    rows = "".join(f"{n}.jpg,1,2,3,4,cat\n" for n in range(4))
    (folder / "images/b.csv").write_text("image,xmin,ymin,xmax,ymax,label\n" + rows)

    def read(copy: Path) -> None:
        refused = None
        for labels in (
            CocoAnnotations("a.json", missing="empty"),
            VocAnnotations("voc", missing="empty"),
            CsvBoxes("b.csv", missing="empty"),
        ):
            try:
                storage = open_annotated(copy / "images", labels)
                storage.read(np.arange(len(storage)))
            except ValueError as error:
                refused = error
        if refused is not None:
            raise refused

    return read


@pytest.mark.parametrize("write", [write_images_of_all_kinds, write_jsonl, write_tar, write_labels])
@pytest.mark.parametrize("count", [20, pytest.param(5000, marks=pytest.mark.slow)])
def test_files_of_others(tmp_path, write, count):
    (tmp_path / "whole").mkdir()
    read = write(tmp_path / "whole")
    ends = check(tmp_path / "whole", read, count, write.__name__, tmp_path)
    assert sum(ends.values()) == count


@pytest.mark.parametrize("value", ["1e999", "[3]", "[" * 5000 + "]" * 5000])
@pytest.mark.parametrize("place", [0, 3, 4, 6])
def test_absurd_values_of_coco(tmp_path, value, place):
    text = json.dumps(COCO)
    keys = ['"id": ', '"file_name": ', '"width": ', '"image_id": ', '"category_id": ', '"bbox": ',
            '"iscrowd": ', '"name": ']  # fmt: skip
    before, _, behind = text.partition(keys[place])
    rest = (
        behind[behind.index("]") + 1 :]
        if place == 5
        else behind[re.search("[,}]", behind).start() :]
    )
    write_images(tmp_path, [f"{n}.jpg" for n in range(4)])
    (tmp_path / "a.json").write_text(before + keys[place] + value + rest)
    try:
        open_annotated(tmp_path, CocoAnnotations("a.json", missing="empty")).read(np.arange(4))
    except ValueError as error:
        assert is_explained(error) and "\n" not in str(error)


@pytest.mark.parametrize("value", ["1e999", "9" * 400])
@pytest.mark.parametrize("name", ["width", "difficult", "xmin"])
def test_absurd_values_of_voc(tmp_path, value, name):
    write_images(tmp_path, ["0.jpg"])
    text = re.sub(f"(<{name}>)[^<]*", rf"\g<1>{value}", VOC)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/0.xml").write_text(text)
    try:
        open_annotated(tmp_path, VocAnnotations()).read(np.arange(1))
    except ValueError as error:
        assert is_explained(error) and "\n" not in str(error)

"""Files with changed bytes: a storage gives records, bad records, or an error of one line.

It never crashes, hangs, takes gigabytes or raises an exception of a library.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import build_loader, compose
from penstock.core.sample import BadRecord, Record
from tests.console import penstock as run_penstock
from tests.contracts.components import component, names_of, storage_at
from tests.contracts.records import pickled
from tests.encoded_images import JPEGS, RGB, encode

ROOT = Path(penstock.__file__).resolve().parent
WRITERS = [
    name
    for name in names_of("writer")
    if name != "image_folder"  # it holds images, which are below
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
    """Return the content with one to three mutations."""
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
    """Limit the process to 3 GB more memory, and to a minute."""

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


def is_explained(error: BaseException) -> bool:
    """Return whether the package itself raised an error, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None
        and Path(trace.tb_frame.f_code.co_filename).is_relative_to(ROOT)
        and "\n" not in str(error)
    )


def check(
    folder: Path, read: Callable[[Path], Any], count: int, form: str, work: Path
) -> dict[str, int]:
    """Read copies of a folder with one changed file each; return how often each end came."""
    seed = zlib.crc32(form.encode())
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    ends = {"read": 0, "refused": 0}
    read(folder)  # unchanged files are read
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
        except (ValueError, RuntimeError) as error:
            assert is_explained(error), f"mutation {number} of {file.name}"
            ends["refused"] += 1
        except Exception as error:
            error.add_note(f"mutation {number} of {file.name}")
            raise
        shutil.rmtree(copy)
    return ends


def samples() -> Iterator[dict[str, Any]]:
    """Yield records with fields of every kind, then records of arrays, then of image files."""
    yield {
        f"ü/{n}.jpg": {
            "image": JPEGS["420"], "label": n % 2, "text": "a" * n, "score": n / 3,
            "boxes": np.arange(4 * n, dtype=np.float32).reshape(-1, 4),
            "about": {"list": [n, None, "x"]},
        }
        for n in range(7)
    }  # fmt: skip
    image = np.zeros((4, 5, 3), np.uint8)
    yield {str(n): {"image": image + n, "label": n % 2, "score": n / 3} for n in range(7)}
    classes = sorted((("cat", "dog")[n % 2], n) for n in range(7))
    yield {f"{c}/{n}.jpg": {"image": JPEGS["420"], "label": n % 2} for c, n in classes}


def write_packed(name: str, folder: Path, work: Path) -> Callable[[Path], Any]:
    for number, records in enumerate(samples()):
        target = [f"pack.to={name}", f"pack.path={folder}/data{number}", "pack.num_workers=0"]
        source = pickled(work / f"records{number}", records, ("cat", "dog"))
        if run_penstock("pack", *source, "dataset.val_fraction=0", *target) == 0:
            break
    data = f"data{number}/train"

    def read(copy: Path) -> None:
        storage = storage_at(name, copy / data)
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
    read = write_packed(name, tmp_path / "whole", tmp_path)
    ends = check(tmp_path / "whole", read, count, name, tmp_path)
    assert ends["refused"] and sum(ends.values()) == count


IMAGES = {
    "jpg": JPEGS["420"], "progressive": JPEGS["progressive"], "png": encode(RGB, "PNG"),
    "gif": encode(RGB, "GIF"), "tiff": encode(RGB, "TIFF", compression="tiff_deflate"),
    "webp": encode(RGB, "WEBP"), "bmp": encode(RGB, "BMP"),
}  # fmt: skip


def write_encoded(folder: Path) -> Callable[[Path], Any]:
    for name, data in IMAGES.items():
        (folder / name).write_bytes(data)
    decode = component("decode", "image")()

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
    given = ["dataset/source=jsonl", "dataset.source.classes=2"]
    return lambda copy: read_all(*STREAM, *given, f"dataset.source.path={copy}/a.jsonl")


def write_tar(folder: Path) -> Callable[[Path], Any]:
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        for n in range(6):
            for name, data in ("jpg", b"image"), ("cls", b"1"), ("json", b'{"a": [1]}'):
                info = tarfile.TarInfo(f"{'é' * 60}{n}.{name}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    given = ["dataset.source.classes=2"]
    return lambda copy: read_all(*STREAM, *given, f"dataset.source.path='pipe:cat {copy}/a.tar'")


AS_STORED = ["dataset/decode=raw", "augment=as_is", "collate=list", "collate.stacked=[]",
             "dataset.val_fraction=0", "loader=inline", "loader.on_error=skip",
             "loader.max_error_rate=1", "loader.drop_last=false"]  # fmt: skip
STREAM = ["dataset=stream", "sampler=sequential"]


def read_all(*given: str) -> None:
    """Read all batches of an epoch as stored; keys are texts."""
    for batch in build_loader(compose([*given, *AS_STORED])):
        for key in batch["key"]:
            key.encode("utf-8", "surrogateescape")


def read_annotated(folder: Path, kind: str, *given: str) -> None:
    """Read images with their label files."""
    data = ["dataset=image_folder", "dataset.storage.labels=null", f"dataset/annotations={kind}"]
    given = tuple(f"dataset.annotations.{each}" for each in given)
    read_all(*data, f"dataset.storage.path={folder}", *given)


def write_images(folder: Path, count: int) -> None:
    """Write files that are images by name."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(b"image %d" % number)


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
    write_images(folder / "images", 4)
    (folder / "images/a.json").write_text(json.dumps(COCO))
    (folder / "images/voc").mkdir()
    (folder / "images/voc/0.xml").write_text(VOC)
    rows = "".join(f"{n}.jpg,1,2,3,4,cat\n" for n in range(4))
    (folder / "images/b.csv").write_text("image,xmin,ymin,xmax,ymax,label\n" + rows)

    def read(copy: Path) -> None:
        refused = None
        for kind, path in (("coco", "a.json"), ("voc", "voc"), ("boxes_csv", "b.csv")):
            try:
                read_annotated(copy / "images", kind, f"path={path}", "missing=empty")
            except ValueError as error:
                refused = error
        if refused is not None:
            raise refused

    return read


@pytest.mark.parametrize("write", [write_encoded, write_jsonl, write_tar, write_labels])
@pytest.mark.parametrize("count", [20, pytest.param(5000, marks=pytest.mark.slow)])
def test_other_files(tmp_path, write, count):
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
    write_images(tmp_path, 4)
    (tmp_path / "a.json").write_text(before + keys[place] + value + rest)
    try:
        read_annotated(tmp_path, "coco", "path=a.json", "missing=empty")
    except ValueError as error:
        assert is_explained(error)


@pytest.mark.parametrize("value", ["1e999", "9" * 400])
@pytest.mark.parametrize("name", ["width", "difficult", "xmin"])
def test_absurd_values_of_voc(tmp_path, value, name):
    write_images(tmp_path, 1)
    text = re.sub(f"(<{name}>)[^<]*", rf"\g<1>{value}", VOC)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/0.xml").write_text(text)
    try:
        read_annotated(tmp_path, "voc")
    except ValueError as error:
        assert is_explained(error)

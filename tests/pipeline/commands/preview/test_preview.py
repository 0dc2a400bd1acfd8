"""The command from its overrides to its files."""

from __future__ import annotations

import html.parser
import re
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from penstock import build_loader
from penstock.pipeline.build import build_dataset, build_sampler
from penstock.pipeline.commands import main
from penstock.pipeline.commands.preview.looks import look, spread
from penstock.pipeline.config.compose import configure
from penstock.pipeline.training.output import write_output
from tests.photographs import scene

SMALL = ["preview.samples=2", "preview.epochs=2", "preview.records=8", "preview.size=64"]


@pytest.fixture
def photographs(tmp_path):
    for number in range(8):
        folder = tmp_path / "photographs" / ("cat", "<b>dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), scene(70, 60 + number, number)[:, :, ::-1])
    return tmp_path / "photographs"


def given(photographs, *overrides):
    return [
        f"dataset.storage.path={photographs}", "dataset.val_fraction=0", "augment.image_size=24",
        "loader=inline", "loader.batch_size=8", *overrides,
    ]  # fmt: skip


def preview(tmp_path, *overrides):
    return main(["preview", *SMALL, f"preview.path={tmp_path / 'out.png'}", *overrides])


def looks_of(config, samples=8, epochs=2):
    dataset = build_dataset(config, "train")
    sampler = build_sampler(config, dataset)
    return look(config, "train", dataset, sampler, SimpleNamespace(samples=samples, epochs=epochs))


def test_an_epoch_shows_exactly_what_the_loader_gives(photographs):
    device = [
        "+augment.device.mirror={_target_: batch_transform/random_flip, p: 0.5}",
        "augment.device.normalize=null",
    ]
    config = configure(given(photographs, *device), command="preview")
    looks = looks_of(config)
    from penstock.pipeline.build import build_device_transforms

    with build_loader(config) as loader:
        (batch,) = list(loader)
    before = batch["image"].numpy().copy()
    for transform in build_device_transforms(config, "train"):
        batch = transform(batch)
    assert (before != batch["image"].numpy()).any()
    assert [sample["key"] for sample in looks.epochs["epoch 0"]] == batch["key"]
    shown = np.stack([sample["image"] for sample in looks.epochs["epoch 0"]])
    assert (shown == batch["image"].numpy()).all()
    assert (np.stack([sample["image"] for sample in looks.epochs["epoch 1"]]) != shown).any()
    normalised = looks_of(configure(given(photographs), command="preview"))
    found = np.stack([sample["image"] for sample in normalised.epochs["epoch 0"]])
    assert (found == before).all()


def test_originals_are_the_files_as_they_lie(photographs):
    looks = looks_of(configure(given(photographs), command="preview"))
    for original, shown in zip(looks.originals, looks.epochs["epoch 0"], strict=True):
        assert original["key"] == shown["key"]
        file = cv2.imread(str(photographs / original["key"]))[:, :, ::-1]
        assert (original["image"] == file).all()


@pytest.mark.parametrize(("total", "count", "group"), [(9, 4, 1), (3, 8, 1), (32, 6, 4), (9, 3, 2)])
def test_positions_are_spread_in_whole_groups(total, count, group):
    positions = spread(total, count, group)
    assert positions[0] == 0 and (np.diff(positions) > 0).all() and positions[-1] < total
    assert len(positions) >= min(count, total // group * group)
    assert (positions.reshape(-1, group) % group == np.arange(group)).all()


def test_both_files_are_written_whole_and_written_again(photographs, tmp_path, capsys):
    assert preview(tmp_path, *given(photographs)) == 0
    png, page = (tmp_path / "out.png"), (tmp_path / "out.html")
    first = png.read_bytes(), page.read_bytes()
    said = capsys.readouterr().out
    assert re.search(r"the model gets image float32 \[B, 3, 24, 24\], channels first, -\d", said)
    picture = cv2.imread(str(png))
    assert f"{picture.shape[1]} x {picture.shape[0]} pixels" in said
    # Two samples of three columns of 150, margins of 24, gaps of 20 and 40.
    assert picture.shape[1] == 2 * 24 + 2 * (3 * 150 + 2 * 20) + 40
    assert preview(tmp_path, *given(photographs)) == 0
    assert (png.read_bytes(), page.read_bytes()) == first
    assert {file.name for file in tmp_path.iterdir()} == {"out.png", "out.html", "photographs"}
    assert _chunks(first[0])[:2] == [b"IHDR", b"tEXt"]


def _chunks(png):
    found, at = [], 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        body = png[at + 4 : at + 8 + length]
        assert zlib.crc32(body) == int.from_bytes(png[at + 8 + length : at + 12 + length], "big")
        found.append(body[:4])
        at += 12 + length
    return found


@pytest.mark.parametrize("name", ["out.png", "out.html"])
def test_a_file_of_somebody_else_is_left_alone(photographs, tmp_path, capsys, name):
    cv2.imwrite(str(tmp_path / "mine.png"), np.zeros((4, 4, 3), np.uint8))
    (tmp_path / name).write_bytes((tmp_path / "mine.png").read_bytes())
    before = (tmp_path / name).read_bytes()
    assert preview(tmp_path, *given(photographs)) == 2
    assert "exists; choose another path, or set preview.overwrite=true" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.glob("*out*"))) == 1
    assert preview(tmp_path, *given(photographs), "preview.overwrite=true") == 0
    assert (tmp_path / name).read_bytes() != before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("dataset.val_fraction=1", "the split train has no samples"),
        ("preview.path=preview.jpg", "ends in .png"),
        ("preview.path=a.png/b.png", "a.png"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    photographs, tmp_path, capsys, monkeypatch, override, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    assert preview(tmp_path, *given(photographs), override) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_where_writing_breaks_off_nothing_is_left(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    first, second = tmp_path / "a.png", tmp_path / "file" / "a.html"
    with pytest.raises(ValueError, match=r"a\.html cannot be written"):
        write_output("preview.path", {first: b"1", second: b"2"})
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    write_output("preview.path", {first: b"1"})
    assert first.read_bytes() == b"1"
    assert first.stat().st_mode == (tmp_path / "file").stat().st_mode


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_needs_nothing_else_and_takes_data_for_text(photographs, tmp_path):
    (photographs / "<b>dog").rename(photographs / "<script>alert(1)<\u2215script>&\"'ж")
    assert preview(tmp_path, *given(photographs), "preview.samples=4") == 0
    page = Page((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags and "link" not in page.tags and "b" not in page.tags
    sources = [value for name, value in page.attributes if name == "src"]
    assert page.tags.count("figure") == 4 * 3 < len(sources)  # charts are no figures
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith("data:image/png;base64,")
        assert not name.startswith("on")
    text = "".join(page.text)
    assert "<script>alert(1)<\u2215script>&\"'ж" in text
    assert "_target_: dataset/map" in text


def test_pictures_of_the_page_are_those_of_the_sheet(photographs, tmp_path):
    import base64

    assert preview(tmp_path, *given(photographs, "sampler=sequential", "preview.size=80")) == 0
    page = Page((tmp_path / "out.html").read_text(encoding="utf-8"))
    sources = [value for name, value in page.attributes if name == "src"]
    sheet = cv2.imread(str(tmp_path / "out.png"))
    for number, source in enumerate(sources[:3]):  # the first row
        data = np.frombuffer(base64.b64decode(source.partition(",")[2]), np.uint8)
        picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
        height, width = picture.shape[:2]
        left = 24 + number * (150 + 20)
        column = sheet[:, left : left + width]
        tops = [y for y in range(40, 130) if (column[y : y + height] == picture).all()]
        assert len(tops) == 1
        if number == 0:
            assert (picture == cv2.imread(str(photographs / "<b>dog" / "1.png"))).all()


def test_a_bad_file_is_a_cell_that_says_why(photographs, tmp_path):
    (photographs / "cat" / "0.png").write_bytes(b"no image at all")
    samples = ["preview.samples=8", "sampler=sequential"]
    assert preview(tmp_path, *given(photographs), *samples) == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.count('<div class="fault">bad sample: ') == 3
    assert text.count("<figure><img") == 7 * 3


def test_the_browser_is_opened_when_asked_to(photographs, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert preview(tmp_path, *given(photographs)) == 0
    assert not opened
    assert preview(tmp_path, *given(photographs), "preview.open=true") == 0
    assert opened == [(tmp_path / "out.html").resolve().as_uri()]


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_tasks_are_drawn_with_their_targets(tmp_path, data_dir, task):
    assert preview(tmp_path, f"data_dir={data_dir}", f"task={task}") == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert 'class="legend"' in text
    assert ("Boxes by class" in text) == (task == "detection")
    assert ("Pixels by class" in text) == (task == "segmentation")
    assert text.count('class="legend"') == 1, "one for all pictures"
    height, width = cv2.imread(str(tmp_path / "out.png")).shape[:2]
    assert height < 1.3 * width <= 1.3 * 1900, "samples stand side by side"


FOREIGN = [
    "dataset=torch", "augment.train=null", "augment.eval=null", "augment.device=null",
    "dataset.val_fraction=0",
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("Waves", ["collate=pad"]),
        ("Stream", ["sampler=sequential"]),
    ],
)
def test_anybodys_dataset(tmp_path, target, more):
    name = f"dataset.target=tests.foreign_data.{target}"
    assert preview(tmp_path, *FOREIGN, name, *more) == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.count("<figure><img") == 2 * 2  # both epochs are alike
    assert "epochs 0 to 1, all alike" in text
    assert ("0.70 " in text) == (len(more) == 2)
    assert ("Lengths of tokens" in text) == (target == "Waves")

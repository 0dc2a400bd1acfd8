"""What packing says, and what can be trained on afterwards."""

from __future__ import annotations

import shlex
import shutil

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.commands import pack
from penstock.pipeline.config.compose import configure


@pytest.fixture
def photographs(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for number in range(6):
            image = draw.integers(0, 255, (72, 80, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photographs" / name / f"{number}.jpg"), image)
    return tmp_path / "photographs"


@pytest.mark.parametrize("val_fraction", [0, 0.5])
def test_the_last_line_says_how_to_train_on_it(photographs, tmp_path, capsys, val_fraction):
    given = [f"dataset.storage.path={photographs}", f"dataset.val_fraction={val_fraction}"]
    assert pack.run(configure([*given, f"pack.path={tmp_path / 'packed'}"], command="pack")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(last.partition("penstock train ")[2])
    small = ["loader=inline", "loader.batch_size=2", "loader.drop_last=false"]
    keys = []
    for overrides in (given, words):
        with build_loader(compose([*overrides, *small])) as loader:
            keys.append(sorted(key for batch in loader for key in batch["key"]))
    assert keys[0] == keys[1] != []


@pytest.fixture
def three_parts(photographs, tmp_path):
    for part in ("train", "val", "test"):
        shutil.copytree(photographs, tmp_path / "parts" / part)
    for number, name in enumerate(("val/cat/0", "test/cat/1", "test/dog/2")):
        (tmp_path / f"parts/{name}.jpg").rename(tmp_path / f"parts/{name}-{number}.jpg")
    return tmp_path / "parts"


def keys_of(overrides, split):
    given = [*overrides, "loader=inline", "loader.batch_size=2", "loader.drop_last=false"]
    with build_loader(compose(given), split=split) as loader:
        return sorted(key for batch in loader for key in batch["key"])


def trained_on(capsys):
    """What is typed to train on it, and all that was said."""
    said = capsys.readouterr().out
    return shlex.split(said.splitlines()[-1].partition("penstock train ")[2]), said


@pytest.mark.parametrize("form", ["lmdb", "zip"])
def test_all_parts_of_the_data_are_packed(three_parts, tmp_path, capsys, form):
    given = [f"dataset.storage.path={three_parts}"]
    to = [f"pack.path={tmp_path / 'packed'}", f"pack.to={form}"]
    assert pack.run(configure([*given, *to], command="pack")) == 0
    typed, said = trained_on(capsys)
    assert "test: 12 records" in said
    for split in ("train", "val", "test"):
        assert keys_of(typed, split) == keys_of(given, split) != []
    assert pack.run(configure([f"pack.check={tmp_path / 'packed'}"], command="pack")) == 0
    assert "test" in capsys.readouterr().out


def test_a_test_part_that_lies_elsewhere_is_packed(three_parts, tmp_path, capsys):
    given = [f"dataset.storage.path={three_parts / 'train'}", "dataset.val_fraction=0",
             f"dataset.test_path={three_parts / 'test'}"]  # fmt: skip
    to = [f"pack.path={tmp_path / 'packed'}"]
    assert pack.run(configure([*given, *to], command="pack")) == 0
    typed, _ = trained_on(capsys)
    for split in ("train", "test"):
        assert keys_of(typed, split) == keys_of(given, split) != []


def test_a_test_part_that_cannot_be_opened_is_said_and_the_others_packed(
    three_parts, tmp_path, capsys
):
    (three_parts / "test/cat").rename(three_parts / "test/lion")
    given = [f"dataset.storage.path={three_parts}", f"pack.path={tmp_path / 'packed'}"]
    assert pack.run(configure(given, command="pack")) == 0
    typed, said = trained_on(capsys)
    assert "test: nothing written: " in said and "'lion' is not among" in said
    assert not (tmp_path / "packed/test").exists()
    assert keys_of(typed, "val") == keys_of(given[:1], "val")


STACK = [
    "augment=imagenet", "augment.image_size=24", "augment.eval_size=28", "loader=inline",
    "loader.batch_size=4",
]  # fmt: skip


def batches(*overrides, split="train"):
    """Keys and images of an epoch by record, and what else a batch has."""
    with build_loader(compose([*STACK, *overrides]), split=split) as loader:
        found = [(b["key"], b["image"].numpy().copy(), b["label"].tolist()) for b in loader]
    assert found
    return found


def packed(photographs, target, *options):
    given = [f"dataset.storage.path={photographs}", "dataset.val_fraction=0.25"]
    options = [f"pack.{option}" for option in options]
    assert pack.run(configure([*given, f"pack.path={target}", *options], command="pack")) == 0
    return [f"dataset.storage.path={target}", "dataset=lmdb"]


def same(one, other):
    return len(one) == len(other) and all(
        a[0] == b[0] and np.array_equal(a[1], b[1]) and a[2] == b[2]
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("options", [["raw=1"], ["raw=0.5"], []])
def test_what_keeps_pixels_gives_the_batches_of_the_files(photographs, tmp_path, split, options):
    expected = batches(
        f"dataset.storage.path={photographs}", "dataset.val_fraction=0.25", split=split
    )
    lmdb = packed(photographs, tmp_path / "packed", *options)
    assert same(batches(*lmdb, split=split), expected)
    assert same(batches(*lmdb, "dataset.decode.region=whole", split=split), expected)


REFUSALS = [
    (["max_side=9", "short_side=9"], "max_side and short_side both say the size"),
    (["tiled=lossless"], "pack.tiled: 'lossless' given"),
    (["raw=1", "quality=90"], "pack.quality has no use"),
    (["raw=1", "tiled=true"], "pack.tiled has no use"),
    (["raw=1.5"], "pack.raw: 1.5 given"),
    (["quality=0"], "pack.quality: 0 given"),
    (["max_side=0"], "pack.max_side: 0 given"),
    (["tiled=exact"], "pack.tiled: 'exact' given"),
]


@pytest.mark.parametrize(("options", "cause"), REFUSALS)
def test_combinations_that_cannot_work_are_refused_before_anything_is_written(
    photographs, tmp_path, options, cause
):
    with pytest.raises(ValueError, match=cause):
        packed(photographs, tmp_path / "packed", *options)
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("options", "decode", "cause"),
    [
        (["quality=90"], "dataset.decode.mode=RGBA", "a JPEG holds no alpha"),
        (["raw=0.5", "max_side=20"], "dataset.decode.mode=RGBA", "a JPEG holds no alpha"),
        (["raw=1"], "dataset/decode=raw", "which decodes none"),
    ],
)
def test_decoders_that_do_not_go_with_the_options_are_refused(
    photographs, tmp_path, options, decode, cause
):
    given = [f"dataset.storage.path={photographs}", f"pack.path={tmp_path / 'packed'}", decode]
    options = [f"pack.{option}" for option in options]
    with pytest.raises(ValueError, match=cause):
        pack.run(configure([*given, *options], command="pack"))
    assert not (tmp_path / "packed").exists()


def test_a_damaged_image_is_named_and_nothing_is_written(photographs, tmp_path):
    victim = photographs / "dog/3.jpg"
    victim.write_bytes(victim.read_bytes()[:900])
    with pytest.raises(ValueError, match=r"dog/3.jpg' truncated JPEG|dog/3.jpg' damaged JPEG"):
        packed(photographs, tmp_path / "packed", "raw=1")
    assert sorted(file.name for file in (tmp_path / "packed").glob("*")) in ([], ["train"])


def test_what_is_there_already_is_left_alone(photographs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    given = [f"dataset.storage.path={photographs}", f"pack.path={tmp_path / 'mine'}"]
    with pytest.raises(ValueError, match="exists already"):
        pack.run(configure(given, command="pack"))
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]


def test_source_and_target_in_each_other_are_refused(photographs, tmp_path):
    given = [f"dataset.storage.path={photographs}"]
    for path in (photographs, photographs / "cat/packed", tmp_path):
        with pytest.raises(ValueError, match="lie in each other; name a folder beside it"):
            pack.run(configure([*given, f"pack.path={path}"], command="pack"))
    assert sorted(file.name for file in photographs.iterdir()) == ["cat", "dog"]


def test_a_packed_folder_is_checked_by_its_path_alone(photographs, tmp_path, capsys):
    packed(photographs, tmp_path / "packed", "verify=true", "num_workers=0")
    capsys.readouterr()
    with pytest.raises(ValueError, match=r"pack\.path: missing"):
        configure([], command="pack")
    assert pack.run(configure([f"check={tmp_path / 'packed'}"], command="pack")) == 0
    assert capsys.readouterr().out.count("all as they were packed") == 2
    for file in photographs.glob("*/*.jpg"):
        file.unlink()  # what was packed stands alone
    [data] = (tmp_path / "packed/val").glob("*.lmdb")
    data.write_bytes(data.read_bytes().replace(b"\xff\xd8", b"\xff\xd9"))
    assert pack.run(configure([f"check={tmp_path / 'packed'}"], command="pack")) == 1
    said = capsys.readouterr().out
    assert "train: 10 records, all" in said and said.count("that were packed (checksum)") == 2


def test_images_change_alike_whatever_the_number_of_workers(photographs, tmp_path, monkeypatch):
    from penstock.datasets.storages.lmdb import LmdbWriter
    from tests.contracts.storage import contents

    monkeypatch.setattr(LmdbWriter, "part_records", 3)
    for name, workers in (("a", 0), ("b", 2)):
        options = ["raw=0.3", "quality=80", "max_side=50", f"num_workers={workers}"]
        packed(photographs, tmp_path / name, *options)
    one, other = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert one == other


def test_memmap_takes_pixels_of_one_size_and_refuses_files(photographs, tmp_path):
    with pytest.raises(ValueError, match=r"image' is a bytes.*give pack.raw=1"):
        packed(photographs, tmp_path / "a", "to=memmap")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["photographs"]
    packed(photographs, tmp_path / "a", "to=memmap", "raw=1")
    assert np.load(tmp_path / "a/train/images.npy").shape == (10, 72, 80, 3)
    given = [f"dataset.storage.path={photographs}", "dataset.val_fraction=0.25"]
    memmap = ["dataset=memmap", f"dataset.storage.path={tmp_path / 'a'}"]
    assert same(batches(*memmap), batches(*given))

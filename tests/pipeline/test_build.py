"""Objects from a config: what cannot be made is one line."""

from __future__ import annotations

import pytest

from pipeline import build_loader, compose
from pipeline.blame import is_explained
from pipeline.build import build


def test_what_a_library_says_against_a_value_is_one_line():
    crop = {"_target_": "albumentations.RandomResizedCrop", "size": [8, 8], "scale": [2, 1]}
    with pytest.raises(
        ValueError, match=r"RandomResizedCrop\(.*scale=\[2, 1\]\) cannot be made"
    ) as e:
        build(crop)
    assert "\n" not in str(e.value) and is_explained(e.value)


def test_nothing_to_train_on_is_said(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"x")
    config = compose([f"dataset.storage.path={tmp_path}", "dataset.val_fraction=1"])
    with pytest.raises(ValueError, match=r"no sample to train on; got dataset\.val_fraction=1"):
        build_loader(config)

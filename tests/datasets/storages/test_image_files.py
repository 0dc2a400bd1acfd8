"""Image files by their paths: in the order given, keys as given, none of them a class."""

from __future__ import annotations

import os

from penstock.datasets.storages.image_folder import ImageFiles
from tests.contracts.storage import check_storage


def test_storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["b.jpg", "sub/it's ж.png", str(tmp_path / "a.jpg")]
    os.mkdir("sub")
    for name in names:
        with open(name, "wb") as file:
            file.write(name.encode())
    expected = [(name, {"image": name.encode()}) for name in names]
    check_storage(lambda: ImageFiles([*names, "b.jpg"]), expected)
    gone = [*expected[:1], ("gone.jpg", None)]
    check_storage(lambda: ImageFiles(["b.jpg", "gone.jpg"]), gone, processes=())
    assert ImageFiles(names).index.class_names is None

"""A plug-in is found where it is installed: by its entry point, with nothing imported."""

from __future__ import annotations

import re
import shutil

import pytest

from penstock import compose
from penstock.pipeline.config.components import load_entry_points
from tests.examples.conftest import EXAMPLES

PLUGINS = {file.stem: file for file in (EXAMPLES / "plugins").glob("*.py")}


@pytest.mark.usefixtures("registered_anew")
@pytest.mark.parametrize("name", PLUGINS)
def test_an_installed_plugin_is_an_option(name, tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs" / "own.md").read_text()
    [points] = re.findall(
        r"^```toml\n# pyproject.toml.*?(\[project.entry-.*?)^```$", page, re.S | re.M
    )
    installed = tmp_path / f"{name}-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = points.replace('entry-points."penstock.components"', "penstock.components")
    points = points.replace("project.", "").replace('"', "").replace("penstock_mds", name)
    (installed / "entry_points.txt").write_text(points)
    shutil.copy(PLUGINS[name], tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    load_entry_points.__wrapped__()
    option = name.removeprefix("penstock_")
    config = compose([f"dataset={option}", f"dataset.storage.path={tmp_path}"])
    assert config["dataset"]["storage"]["_target_"] == f"storage/{option}"

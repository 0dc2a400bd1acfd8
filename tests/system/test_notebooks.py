"""What a notebook shows: configs, loaders and previews, by themselves."""

from __future__ import annotations

import pytest
import yaml

from penstock import build_loader, compose, preview


def test_configs_loaders_and_previews_show_themselves(data_dir):
    config = compose([f"data_dir={data_dir}", "loader=inline", "loader.batch_size=8"])
    assert "<summary>loader</summary><pre>_target_: settings/loader\n" in config._repr_html_()
    assert yaml.safe_load(yaml.safe_dump(config)) == config
    with build_loader(config, split="train") as loader:
        shown = loader._repr_html_()
    assert f"{len(loader):,} batches of 8</td>" in shown and "circle, cross" in shown
    drawn = preview(config, samples=1, epochs=1, size=64, records=8)
    assert drawn._repr_png_().startswith(b"\x89PNG")


@pytest.mark.ecosystem
def test_a_notebook_runs(data_dir, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [
        "from penstock import build_loader, compose, preview\n"
        f"config = compose(['data_dir={data_dir}', 'loader=inline'])\nconfig",
        "build_loader(config, split='val')",
        "preview(config, samples=1, epochs=1, size=64, records=8)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    kinds = [{*cell.outputs[-1].data} for cell in notebook.cells]
    assert "text/html" in kinds[0] and "text/html" in kinds[1] and "image/png" in kinds[2]

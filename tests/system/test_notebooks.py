"""What a notebook shows: previews, by themselves."""

from __future__ import annotations

import pytest

from penstock import compose, preview


def test_previews_show_themselves(data_dir):
    config = compose([f"data_dir={data_dir}", "loader=inline"])
    drawn = preview(config, samples=1, epochs=1, size=64, records=8)
    assert drawn._repr_png_().startswith(b"\x89PNG")


@pytest.mark.ecosystem
def test_a_notebook_runs(data_dir, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    cells = [
        "from penstock import build_loader, compose, preview\n"
        f"config = compose(['data_dir={data_dir}', 'loader=inline'])",
        "len(build_loader(config, split='val'))",
        "preview(config, samples=1, epochs=1, size=64, records=8)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    kinds = [{*cell.outputs[-1].data} if cell.outputs else set() for cell in notebook.cells]
    assert "text/plain" in kinds[1] and "image/png" in kinds[2]

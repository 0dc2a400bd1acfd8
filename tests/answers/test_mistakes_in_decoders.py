"""A mistake in a user's decoder or step raises, and never counts as a damaged record."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose

ROWS, WRONG = 400, 20
COMPONENTS = """
from penstock import register


@register("decode", "mistaken")
class Mistaken:
    def __call__(self, record):
        if record.fields["label"] == 20:
            int("not a number")
        return {**record.fields, "key": record.key, "index": record.index}


@register("transform", "mistaken_step")
def mistaken_step(sample, rng):
    if sample["label"] == 20:
        int("not a number")
    return sample
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "mistakes.py").write_text(COMPONENTS)
    np.save(folder / "image.npy", np.zeros((ROWS, 8, 8, 3), np.uint8))
    np.save(folder / "label.npy", np.arange(ROWS))
    return [
        "dataset=memmap", f"dataset.storage.path={folder}", "dataset.val_fraction=0",
        f"imports=[{folder}/mistakes.py]", "loader.batch_size=8",
        "loader.engine=inline",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "component",
    [["augment=as_is", "dataset/decode=mistaken"], ["transform=mistaken_step"]],
    ids=["decoder", "step"],
)
def test_a_value_error_of_a_users_component_raises_and_names_the_record(settings, component):
    with (
        build_loader(compose([*settings, *component]), "train") as loader,
        pytest.raises(Exception, match="not a number") as raised,
    ):
        list(loader)
    said = f"{raised.value} {vars(raised.value).get('__notes__', '')}"
    assert f"'{WRONG:08d}'" in said or f"record {WRONG}" in said or f"'{WRONG}'" in said

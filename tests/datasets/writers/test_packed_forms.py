"""Every form keeps the contract of packed forms."""

from __future__ import annotations

import pytest

from tests.contracts.components import names_of
from tests.contracts.packing import check_packing

CANNOT_HOLD = {
    **dict.fromkeys(("image_folder", "zip"), (
        "keys", "numbered", "order", "classes", "pixels", "arrays", "shapes", "bytes", "numbers",
        "values", "no image",
    )),
    "hdf5": ("pixels", "shapes", "bytes", "values", "missing", "no image"),
    **dict.fromkeys(("memmap", "npy_shards", "pt_shards"), ("files", "pixels", "shapes", "bytes",
                                                            "values", "missing")),
}  # fmt: skip
SMALL_PARTS = {
    "webdataset": ["writer.shard_records=5"],
    "parquet": ["writer.part_records=5", "writer.group_rows=3"],
    "arrow": ["writer.part_records=5", "writer.group_rows=3"],
    "zip": ["writer.part_records=5"],
}
QUICK = ("memmap", "webdataset", "zip")
FORMS = [
    pytest.param(form, marks=() if form in QUICK else pytest.mark.slow)
    for form in names_of("writer")
]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_back_what_was_packed(form, tmp_path):
    check_packing(
        form,
        tmp_path,
        cannot_hold=CANNOT_HOLD.get(form, ()),
        options=SMALL_PARTS.get(form, ()),
    )

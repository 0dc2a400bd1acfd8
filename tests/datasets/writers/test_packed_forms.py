"""Every form keeps the contract of packed forms, and records pass from form to form."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from penstock.core.record_codec import record_checksum
from penstock.core.sample import Record
from penstock.datasets.writing import make_plan, write_part
from tests.console import penstock
from tests.contracts.components import component, names_of, storage_at
from tests.contracts.packing import assert_equal, check_packing
from tests.contracts.records import KINDS, pickled, records_of
from tests.contracts.storage import read_all
from tests.shares import in_turn

CANNOT_HOLD = {form: component("writer", form)().cannot_hold for form in names_of("writer")}
SMALL_PARTS = {
    "webdataset": ["writer.shard_records=5"],
    "parquet": ["writer.part_records=5", "writer.group_rows=3"],
    "arrow": ["writer.part_records=5", "writer.group_rows=3"],
    "zip": ["writer.part_records=5"],
}
# Kinds of records with pixels of one size, as forms of arrays need them.
ALIKE = KINDS - {"files", "pixels", "shapes", "missing", "no image", "keys"}
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
        cannot_hold=CANNOT_HOLD[form],
        options=SMALL_PARTS.get(form, ()),
    )


def written(form, folder, source):
    """Write records in parts of 5, the last part first, without the bad ones; open the storage."""
    writer = component("writer", form)()
    writer.part_records = 5
    plan = make_plan(writer, source)
    folder.mkdir()
    writer.begin(folder, plan)
    last_first = [
        write_part(writer, folder, plan, part, source, skip_bad=True) for part in plan.parts[::-1]
    ]
    writer.finish(folder, plan, last_first[::-1])
    return storage_at(form, folder)


def checksums(storage):
    good = (record for record in read_all(storage) if isinstance(record, Record))
    return [record_checksum(record.fields, key="") for record in good]


@pytest.mark.parametrize(("one", "other"), in_turn(*[names_of("writer")] * 2, every=6))
@pytest.mark.parametrize("kinds", [KINDS, ALIKE], ids=["any", "alike"])
def test_records_pass_from_form_to_form_and_back(one, other, kinds, tmp_path):
    kinds = kinds.difference(CANNOT_HOLD[one], CANNOT_HOLD[other])
    if not kinds & {"files", "pixels", "arrays", "bytes", "numbers", "values"}:
        pytest.skip("both hold only the label")
    source = found = records_of(kinds)
    source.records |= dict.fromkeys([*source.records][-9:-2])  # bad: a part, and single records
    for number, form in enumerate((one, other, one)):
        found = written(form, tmp_path / str(number), found)
        assert_equal(found, source.records)
        assert found.index.class_names == source.index.class_names
        assert checksums(found) == checksums(source), "empty arrays keep their shape"


@pytest.mark.parametrize("form", names_of("writer"))
def test_the_error_of_a_full_disk_is_one_line(form, tmp_path, capsys):
    is_file = "files" not in CANNOT_HOLD[form]
    image = b"0" * 400_000 if is_file else np.zeros((200, 700, 3), np.uint8)
    records = {f"a/{n}.jpg": {"image": image, "label": 0} for n in range(3)}
    typed = [*pickled(tmp_path / "records", records, ["a"]), "dataset.val_fraction=0"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert penstock("pack", *typed, f"pack.to={form}", f"pack.path={tmp_path}/out") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free some space" in capsys.readouterr().err.splitlines()[-1]

"""Packing on machines that see the data, and neither the folder that is made nor the cache."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from penstock.core import registry
from penstock.pipeline.commands import main
from penstock.pipeline.config.components import register_components
from penstock.pipeline.packing.run import pack
from tests.cluster import another_machine, local_cluster
from tests.contracts.records import KINDS as ALL_KINDS
from tests.contracts.records import records_of
from tests.contracts.storage import contents
from tests.laws.conftest import make_photos
from tests.pipeline.packing.killing import packing_of
from tests.pipeline.packing.packings import KINDS, Deadly, packing

pytestmark = pytest.mark.slow
register_components()
WRITERS = {
    component.name: component.target
    for component in registry.components("writer")
    if component.target.__module__.startswith("penstock.datasets.")
}


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A folder that only this machine has, while all work is done on another one."""
    folder = tmp_path_factory.mktemp("hidden")
    with (
        pytest.MonkeyPatch.context() as patch,
        local_cluster(num_cpus=0) as cluster,
        another_machine(cluster, folder),
    ):
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.mark.parametrize("form", WRITERS)
def test_the_bytes_are_those_of_one_machine(form, hidden):
    writer = WRITERS[form]()
    writer.part_records = 5
    source = {"train": records_of(ALL_KINDS - writer.cannot_hold)}
    (hidden / form / "here").mkdir(parents=True)
    here = packing_of(hidden / form / "here", writer, form, source)
    assert pack(here) == 0
    there = replace(here, target=hidden / form / "there", num_workers=2, launcher="ray")
    assert pack(there) == 0
    found = contents(hidden / form / "here")
    assert contents(hidden / form / "there") == found and len(found) > 2


def test_what_was_sent_is_gone_on_from(hidden, tmp_path):
    (tmp_path / "counts").mkdir()
    plain = records_of(KINDS)
    records = Deadly(plain.records, plain.index.class_names, times=3, counts=tmp_path / "counts")
    there = packing(hidden / "twice", {"train": records}, num_workers=2, launcher="ray")
    with pytest.raises(ValueError, match="ended its worker process 3 times"):
        pack(there)
    assert [*hidden.glob(".twice*/**/part-*")], "whole parts are kept"
    assert pack(there) == 0
    assert pack(packing(hidden / "once", {"train": records})) == 0
    assert contents(hidden / "twice") == contents(hidden / "once")


def test_as_it_is_typed(hidden, tmp_path):
    make_photos(tmp_path, {"ash": 30, "birch": 21})
    given = ["pack", f"dataset.storage.path={tmp_path}", "pack.to=webdataset", "pack.quality=80"]
    given += ["writer.shard_records=4", "pack.num_workers=2"]
    for name, more in {"here": [], "there": ["pack.launcher=ray", "pack.verify=true"]}.items():
        assert main([*given, f"pack.path={hidden / name}", *more]) == 0
    assert contents(hidden / "there") == contents(hidden / "here")


def test_data_that_is_not_there_is_told_with_the_machine(hidden, capsys):
    make_photos(hidden / "photos", {"ash": 12})
    given = ["pack", f"dataset.storage.path={hidden}/photos", "pack.to=webdataset"]
    given += ["writer.shard_records=4", f"pack.path={hidden}/told", "pack.num_workers=2"]
    assert main([*given, "pack.launcher=ray"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"error: pack: .* cannot be opened on far: no {hidden}/photos/train,", said)

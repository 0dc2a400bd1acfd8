"""Mixes that cannot work are refused before anything is opened, one line each."""

from __future__ import annotations

import pytest

from penstock.datasets.mix import with_keys_of_source
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError

PHOTOS, PACKED = "dataset.sources.photos", "dataset.sources.packed"
MIX = ("dataset=mix", f"{PHOTOS}.dataset=image_folder", f"{PHOTOS}.weight=3",
       f"{PACKED}.dataset=lmdb")  # fmt: skip


def test_a_mix_has_no_sources_but_those_that_are_typed():
    with pytest.raises(ConfigError, match="no source given, accepts data sets by name; type"):
        compose(["dataset=mix"])
    config = compose(
        ["dataset=mix", "dataset.sources.a.dataset=zip", "dataset.sources.b.dataset=csv"]
    )
    assert list(config["dataset"]["sources"]) == ["a", "b"]


@pytest.mark.parametrize("task", ["detection", "segmentation", "multilabel"])
def test_a_task_that_chooses_annotations_leaves_them_to_the_sources(task):
    config = compose([f"task={task}", *MIX, f"{PACKED}.dataset.annotations=in_records"])
    sources = config["dataset"]["sources"]
    assert sources["photos"]["dataset"]["annotations"] is None
    assert sources["packed"]["dataset"]["annotations"]["_target_"] == "annotations/in_records"
    assert "annotations" not in config["dataset"]


def test_null_for_a_misspelt_step_is_refused_and_for_one_of_another_stack_is_not():
    with pytest.raises(ConfigError, match=r"augment.train has crop, flip; type augment.train.flip"):
        compose(["augment=light", "augment.train.filp=null"])
    with pytest.raises(ConfigError, match=r"task.tasks has label, boxes, points; leave task.tasks"):
        compose(["task=multi", "task.tasks.zebra=null"])
    assert compose(["augment=light", "augment.train.blur=null"])["augment"]["train"]["blur"] is None
    compose(["augment=none", "augment.train.flip=null"])


def test_keys_in_a_message_become_those_of_the_source():
    given = (
        "memmap /data/dataset.npy: set dataset.storage.path, or type dataset=zip, "
        "dataset/annotations=voc or sampler.column=dataset; dataset.sources.a.dataset.keys stays"
    )
    assert with_keys_of_source(given, "b") == (
        "memmap /data/dataset.npy: set dataset.sources.b.dataset.storage.path, or type "
        "dataset.sources.b.dataset=zip, dataset.sources.b.dataset.annotations=voc or "
        "dataset.sources.b.sampler.column=dataset; dataset.sources.a.dataset.keys stays"
    )


def test_sources_are_chosen_added_and_taken_away_by_what_is_typed():
    config = compose(
        [
            *MIX,
            "dataset.sources.more.dataset.decode=raw",
            "dataset.sources.more.dataset=memmap",
            "dataset.sources.more.weight=0.5",
            f"{PHOTOS}.dataset=zip",
            f"{PHOTOS}.sampler=weighted",
            f"{PHOTOS}.sampler.replacement=false",
            "dataset.sources.packed=null",
        ]
    )
    sources = config["dataset"]["sources"]
    assert list(sources) == ["photos", "packed", "more"] and sources["packed"] is None
    photos, more = sources["photos"], sources["more"]
    assert photos["dataset"]["storage"]["_target_"] == "storage/zip"
    assert photos["sampler"]["replacement"] is False and photos["weight"] == 3
    assert more["dataset"]["decode"]["_target_"] == "decode/raw"
    assert (more["weight"], more["sampler"]) == (0.5, None)
    assert config["sampler"] == {"_target_": "sampler/mix"}

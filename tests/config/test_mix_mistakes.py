"""Mixes that cannot work are refused before anything is opened, one line each."""

from __future__ import annotations

import pytest

from penstock.datasets.mix import with_keys_of_source
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError

PHOTOS, PACKED = "dataset.sources.photos", "dataset.sources.packed"
MIX = ("dataset=mix", f"{PHOTOS}.dataset=image_folder", f"{PHOTOS}.weight=3",
       f"{PACKED}.dataset=lmdb")  # fmt: skip

REFUSED = {
    "another sampler": {
        "sampler=weighted": "sampler: sampler/weighted given, and a mix is its own sampler; type "
        f"sampler=mix, and for one of its sources {PHOTOS}.sampler=weighted",
    },
    "no source": {"dataset.sources=null": "dataset.sources: no source given"},
    "all taken away": {
        f"{PHOTOS}=null": "dataset.sources: no source given",
        f"{PACKED}=null": "",
    },
    "nothing drawn": {
        f"{PHOTOS}.weight=0": "dataset.sources: all weights are 0 (photos, packed)",
        f"{PACKED}.weight=0": "",
    },
    "what are no weights": {
        f"{PHOTOS}.weight=-1": f"{PHOTOS}.weight: -1 given, accepts a number >= 0",
        f"{PACKED}.weight=nan": f"{PACKED}.weight: nan given, accepts a number >= 0",
        "dataset.length=0": "dataset.length: 0 given, accepts an integer >= 1 or null",
    },
    "what is no number": {
        f"{PHOTOS}.weight=inf": f"{PHOTOS}.weight: inf given, accepts a number of at least 0",
        f"{PACKED}=zip": f"{PACKED}: 'zip' given, accepts a mapping of its own; type "
        f"{PACKED}.dataset=zip (options: arrow, audio_folder, csv, eager,",
    },
    "misspelt": {
        "dataset.sources.photo.weight=2": "dataset.sources.photo: unknown key; accepts photos, "
        "packed, pakced, slides, or another with a data set: "
        "dataset.sources.photo.dataset=<option>; type dataset.sources.photos=...",
        "dataset.sources.pakced.dataset.storage.path=.": "type dataset.sources.packed=...",
        "dataset.sources.slides.weight=1": "dataset.sources.slides.dataset: missing; type "
        "dataset.sources.slides.dataset=<option> (options: arrow, audio_folder, csv, eager, hdf5, "
        "image_folder, lmdb, memmap, npy_shards, parquet, pt_shards, sqlite, torch, webdataset, "
        "zip)",
        f"{PHOTOS}.wieght=2": f"{PHOTOS}.wieght: 2 given, unknown key; settings/source accepts "
        f"dataset, sampler, weight; type {PHOTOS}.weight=2",
        f"{PACKED}.dataset=zipp": f"{PACKED}.dataset: no option 'zipp', the options are",
        f"{PHOTOS}.sampler=wieghted": f"type {PHOTOS}.sampler=weighted",
    },
    "taken away by another name": {
        "dataset.sources.photso=null": "dataset.sources.photso: null given, which takes away "
        f"nothing: dataset.sources has photos, packed; type {PHOTOS}=null",
        "dataset.sources.zebra=null": "dataset.sources has photos, packed; leave "
        "dataset.sources.zebra away",
    },
    "a list of them": {
        "dataset.sources=[a,b]": "dataset.sources: [a,b] given, where the keys photos, packed "
        f"stand; type {PHOTOS}=...",
    },
    "a word for them": {
        "dataset.sources=zip": "dataset.sources: 'zip' given, accepts components by name; type "
        "dataset.sources.<name>.dataset=<option>",
    },
    "a storage of its own": {
        "dataset.storage.path=.": "dataset.storage: dataset/mix takes no storage; its sources have "
        f"their own; type {PHOTOS}.dataset.storage.path=...",
    },
    "what has no place": {
        f"{PHOTOS}.sampler=infinite": f"{PHOTOS}.sampler: sampler/infinite given, which makes "
        f"whole batches, and a mix takes the draws of its sources apart; type "
        f"{PHOTOS}.sampler=random",
        f"{PACKED}.dataset=stream": f"{PACKED}.dataset: dataset/stream is a stream, which is read "
        f"in its own order, and a mix draws by index; type {PACKED}.dataset=webdataset",
    },
    "an iterable of torch's": {
        f"{PHOTOS}.dataset=torch": f"{PHOTOS}.dataset: tests.laws.components.PhotoStream is a",
        f"{PHOTOS}.dataset.target=tests.laws.components.PhotoStream": "",
        f"{PHOTOS}.dataset.args={{root: .}}": "",
    },
    "of the sources alone": {
        f"{PHOTOS}.dataset.storage.path=nowhere": f"{PHOTOS}.dataset.storage.path: 'nowhere' not",
        f"{PACKED}.dataset.cache=ram": "",
        f"{PACKED}.dataset.cache.max_bytes=x": f"{PACKED}.dataset.cache.max_bytes: 'x' given, "
        "expected an amount",
    },
}


@pytest.mark.parametrize("mistakes", REFUSED)
def test_one_line_each_says_what_to_type(mistakes):
    given = REFUSED[mistakes]
    with pytest.raises(ConfigError) as caught:
        compose([*MIX, *given])
    messages = [message for message in given.values() if message]
    for message in messages:
        assert message in str(caught.value)
    assert len(caught.value.problems) == len(messages), str(caught.value)


def test_its_sampler_is_refused_elsewhere():
    message = "sampler/mix draws from several data sets, and this is one; type sampler=random"
    with pytest.raises(ConfigError, match=message):
        compose(["dataset=image_folder", "sampler=mix"])


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


def test_a_mix_in_a_mix_is_refused():
    with pytest.raises(ConfigError, match="a mix given, accepts one data set; give its sources"):
        compose([*MIX, f"{PHOTOS}.dataset=mix"])


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

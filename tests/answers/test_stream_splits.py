"""A stream's record trains or validates by its key, whatever the order of an epoch."""

from __future__ import annotations

import json
import sys
from itertools import product

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from penstock import build_loader, compose, register

KEYS = {f"photo-{number:02d}" for number in range(80)}
IMAGE = np.zeros((8, 8, 3), np.uint8)
COMMON = [
    "augment=as_is",
    "loader.num_workers=0",
    "loader.batch_size=5",
    "loader.drop_last=false",
]


def shuffled(epoch):
    return np.random.default_rng(epoch).permutation(sorted(KEYS)).tolist()


class Shuffling(IterableDataset):
    """Items in another order in each epoch."""

    def __init__(self, form="mapping"):
        self.form, self.epoch = form, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for key in shuffled(self.epoch):
            yield {
                "mapping": {"image": IMAGE, "label": 0, "key": key},
                "tuple": (IMAGE, 0, key),
                "keyless": (IMAGE, 0),
            }[self.form]


@register("source", "answers_shuffled")
def answers_shuffled(epoch: int, keyless: bool = False):
    for key in shuffled(epoch):
        yield {"image": IMAGE, "label": 0} | ({} if keyless else {"key": key})


@register("source", "answers_sharded")
def answers_sharded(shard: int, num_shards: int, keyless: bool = False):
    for key in sorted(KEYS)[shard::num_shards]:
        yield {"image": IMAGE, "label": 0} | ({} if keyless else {"key": key})


@register("source", "answers_in_order")
def answers_in_order():
    yield from ({"image": IMAGE, "label": int(key[-2:])} for key in sorted(KEYS))


SHUFFLING = ["dataset=torch", f"dataset.target={__name__}.Shuffling"]
KEYED = [*SHUFFLING, "dataset.keys=[image,label,key]"]
GENERATOR = ["dataset=stream", "dataset/decode=raw", "dataset/source=answers_shuffled"]
SHARDED = ["dataset=stream", "dataset/decode=raw", "dataset/source=answers_sharded"]


def epochs(config, split, count=1, field="key"):
    with build_loader(config, split) as loader:
        return [[value for batch in loader for value in batch[field]] for _ in range(count)]


def check_split(typed, everything=KEYS):
    config = compose([*typed, *COMMON])
    [validated], trained = epochs(config, "val"), epochs(config, "train", 3)
    assert 0 < len(validated) < len(everything) / 2
    assert all({*epoch} == everything - {*validated} for epoch in trained)
    assert len(trained[0]) + len(validated) == len(everything)


@pytest.mark.parametrize("form", ["mapping", "tuple"])
def test_items_of_an_iterable_dataset_are_split_by_key(form):
    check_split([*KEYED, f"dataset.args.form={form}"])


def test_items_of_a_generator_that_takes_epoch_are_split_by_key():
    check_split(GENERATOR)


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_split_of_a_generator_that_takes_shard_is_the_same_for_any_lanes(lanes):
    [validated] = epochs(compose([*SHARDED, *COMMON]), "val")
    [again] = epochs(compose([*SHARDED, *COMMON, f"dataset.lanes={lanes}"]), "val")
    assert {*validated} == {*again}
    check_split([*SHARDED, f"dataset.lanes={lanes}"])


def test_a_generator_with_one_order_is_split_by_number():
    config = compose(["dataset=stream", "dataset/decode=raw", "dataset/source=answers_in_order",
                      *COMMON])  # fmt: skip
    [validated], trained = epochs(config, "val", 1, "label"), epochs(config, "train", 2, "label")
    for labels in trained:
        assert sorted(int(label) for label in [*validated, *labels]) == list(range(80))


@pytest.mark.parametrize("has_key", [True, False])
def test_lines_of_a_command_are_split_by_what_they_hold(tmp_path, has_key):
    key = "key" if has_key else "name"
    lines = [json.dumps({key: name, "label": 0}) for name in sorted(KEYS)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "shuffle.py").write_text(
        "import random, sys\n"
        "lines = open(sys.argv[1]).readlines()\n"
        "random.SystemRandom().shuffle(lines)\n"
        "sys.stdout.writelines(lines)\n"
    )
    command = f"{sys.executable} -S {tmp_path / 'shuffle.py'} {tmp_path / 'lines.jsonl'}"
    config = compose(["dataset=stream", "dataset/decode=raw", "dataset/source=jsonl",
                      f"dataset.source.path='pipe:{command}'", *COMMON])  # fmt: skip
    [validated], trained = epochs(config, "val", 1, key), epochs(config, "train", 2, key)
    assert validated
    assert all({*epoch} == KEYS - {*validated} for epoch in trained)


@pytest.mark.parametrize(
    ("typed", "remedies"),
    [
        ([*SHUFFLING, "dataset.args.form=keyless"], ["dataset.val_args", "dataset.keys"]),
        ([*KEYED, "dataset.args.form=keyless"], ["'key'"]),
        ([*GENERATOR, "dataset.source.keyless=true"], ["'key'"]),
        ([*SHARDED, "dataset.source.keyless=true"], ["'key'"]),
    ],
)
def test_items_without_a_key_cannot_be_split(typed, remedies):
    for given, split in product(([], ["dataset.val_fraction=0.3"]), ("train", "val")):
        with pytest.raises(ValueError, match=r"dataset\.val_fraction") as refused:
            epochs(compose([*typed, *given, *COMMON]), split)
        assert all(remedy in str(refused.value) for remedy in remedies)
        assert "dataset.val_fraction=0" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("typed", [[*SHUFFLING, "dataset.args.form=keyless"],
                                   [*GENERATOR, "dataset.source.keyless=true"]])  # fmt: skip
def test_what_the_refusal_says_to_type_works(typed):
    config = compose([*typed, *COMMON, "dataset.val_fraction=0"])
    assert len(epochs(config, "train")[0]) == 80 and epochs(config, "val") == [[]]
    if typed[0] == "dataset=torch":
        config = compose([*typed, *COMMON, "dataset.val_args={form: mapping}"])
        assert {*epochs(config, "val")[0]} == KEYS and len(epochs(config, "train")[0]) == 80

"""Identity and balanced-batch samplers: what each batch and epoch holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.pipeline.samplers.classes import BalancedBatchSampler, IdentitySampler
from tests.pipeline.loader.fakes import FakeIndex

SIZES = st.lists(st.integers(1, 13), min_size=2, max_size=9)
QUICK = settings(max_examples=60)


def index_of(sizes):
    """Records of so many classes, in any order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return FakeIndex(np.random.default_rng(0).permutation(labels))


def identities(sizes, *, epoch=0, per_batch, together):
    """The sampler, and the labels and records of an epoch, [B, P, K]."""
    index, size = index_of(sizes), per_batch * together
    sampler = IdentitySampler(len(index), index, batch_size=size, images_per_identity=together)
    records = sampler.indices(epoch, 0, len(sampler)).reshape(-1, per_batch, together)
    return sampler, index.column("label")[records], records


@QUICK
@given(SIZES, st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_every_batch_has_different_identities_with_their_images(sizes, per_batch, together, epoch):
    assume(per_batch <= len(sizes))
    sampler, labels, records = identities(
        sizes, per_batch=per_batch, together=together, epoch=epoch
    )
    assert (labels == labels[:, :, :1]).all()
    assert all(len(set(batch)) == per_batch for batch in labels[:, :, 0].tolist())
    groups = np.array([-(-size // together) for size in sizes])
    drawn = np.bincount(labels[:, :, 0].ravel(), minlength=len(sizes))
    assert (drawn <= groups).all()
    # One batch more would need an identity twice.
    more = len(labels) + 1
    assert np.minimum(groups, more).sum() < per_batch * more
    for label, size in enumerate(sizes):
        mine = records[labels[:, :, 0] == label]
        assert all(len(set(group)) == min(together, size) for group in mine.tolist())
        counts = np.bincount(mine.ravel())
        counts = counts[counts > 0]
        if drawn[label] == groups[label]:
            assert len(counts) == size and counts.max() - counts.min() <= 1
        else:
            assert (counts <= 1).all() or size < together
    assert (sampler.group, sampler.same) == (together, ("label",))


def test_unknown_people_are_left_out_and_another_column_may_say_the_identity():
    index = FakeIndex(np.repeat([-1, 0, 1, 2], 5))
    sampler = IdentitySampler(20, index, batch_size=6, images_per_identity=2)
    assert set(index.column("label")[sampler.indices(0, 0, len(sampler))]) == {0, 1, 2}
    index._columns["camera"] = np.arange(20) % 3
    sampler = IdentitySampler(20, index, batch_size=6, images_per_identity=2, column="camera")
    cameras = index.column("camera")[sampler.indices(0, 0, len(sampler))].reshape(-1, 3, 2)
    assert all(set(batch) == {0, 1, 2} for batch in cameras[:, :, 0].tolist())
    assert sampler.same == ("camera",)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            IdentitySampler,
            {"batch_size": 24},
            "6 different identities, .* has 5; .*size=20 or less",
        ),
        (IdentitySampler, {"batch_size": 8, "column": "person"}, "column 'person' .*: label"),
        (
            IdentitySampler,
            {"batch_size": 8, "column": "size"},
            "integer column 'size' .*size is float64",
        ),
        (BalancedBatchSampler, {"batch_size": 12, "classes": 6}, "classes is 6, .* data has 5"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        make(25, index_of([9, 2, 9, 1, 4]), **arguments)
    assert "\n" not in str(caught.value)


@QUICK
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(1, 7), st.integers(0, 2))
def test_balanced_batches_are_exact(sizes, classes, together, num_batches, epoch):
    assume(classes <= len(sizes))
    index = index_of(sizes)
    sampler = BalancedBatchSampler(
        len(index), index, batch_size=classes * together, classes=classes, num_batches=num_batches
    )
    assert len(sampler) == num_batches * classes * together and sampler.group == classes
    records = sampler.indices(epoch, 0, len(sampler)).reshape(num_batches, together, classes)
    labels = index.column("label")[records]
    assert all(len(set(turn)) == classes for turn in labels[:, 0].tolist())
    assert (labels == labels[:, :1]).all(), "each turn has every class of the batch"
    drawn = np.bincount(labels.ravel(), minlength=len(sizes)) // together
    assert drawn.max() - drawn.min() <= 1
    for label, size in enumerate(sizes):
        counts = np.bincount(records[labels == label])
        counts = np.append(counts[counts > 0], np.zeros(size - np.count_nonzero(counts)))
        assert counts.max() - counts.min() <= 1, "none again before all of its class were"

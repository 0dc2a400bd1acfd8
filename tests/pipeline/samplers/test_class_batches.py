"""Identity, balanced-batch, infinite and inference samplers: what each batch and epoch holds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.pipeline.loader.plan import BatchPlan
from penstock.pipeline.samplers.balanced_batch import BalancedBatchSampler
from penstock.pipeline.samplers.class_batches import (
    Members,
    batches_without_repeats,
    epoch_of_classes,
)
from penstock.pipeline.samplers.identity import IdentitySampler
from penstock.pipeline.samplers.infinite import InfiniteSampler
from penstock.pipeline.samplers.random import RandomSampler
from penstock.pipeline.samplers.sequential import make_inference_sampler
from tests.contracts.sampler import check_sampler
from tests.pipeline.loader.fakes import FakeIndex
from tests.pipeline.samplers.test_samplers import fits

SIZES = st.lists(st.integers(1, 13), min_size=2, max_size=9)
QUICK = settings(max_examples=60)


def index_of(sizes, seed=0):
    """Records of so many classes, in any order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return FakeIndex(np.random.default_rng(seed).permutation(labels))


def identities(sizes, *, epoch=0, seed=0, per_batch, together, **more):
    """The sampler, and the labels and records of an epoch, [B, P, K]."""
    index = index_of(sizes)
    sampler = IdentitySampler(
        len(index), index, seed, batch_size=per_batch * together, images_per_identity=together,
        **more,
    )  # fmt: skip
    records = sampler.indices(epoch, 0, len(sampler)).reshape(-1, per_batch, together)
    return sampler, index.column("label")[records], records


@pytest.mark.parametrize(
    "make",
    [
        lambda index: IdentitySampler(53, index, 7, batch_size=12, images_per_identity=4),
        lambda index: BalancedBatchSampler(53, index, 7, batch_size=10),
        lambda index: BalancedBatchSampler(53, index, 7, batch_size=9, classes=3),
        lambda index: InfiniteSampler(53, 7, batch_size=9, steps=11),
    ],
)
def test_they_are_pure(make):
    check_sampler(make(index_of([30, 2, 11, 5, 5])), n=53, shuffles=True, exactly_once=False)


def test_inference_is_all_of_it_in_order():
    check_sampler(make_inference_sampler(53), n=53, shuffles=False, exactly_once=True)
    assert make_inference_sampler(53).indices(3, 10, 14).tolist() == [10, 11, 12, 13]


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


@QUICK
@given(SIZES, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5))
def test_ranks_share_out_whole_identities(sizes, per_batch, together, world_size):
    assume(per_batch <= len(sizes))
    sampler, labels, _ = identities(sizes, per_batch=per_batch, together=together)
    alone = [batch.ravel().tolist() for batch in labels]
    joined = [[] for _ in alone]
    column = index_of(sizes).column("label")
    for rank in range(world_size):
        plan = BatchPlan(len(sampler), per_batch * together, world_size, rank, group=sampler.group)
        for number in range(len(plan)):
            positions, valid = plan.batch(number)
            mine = column[[sampler.indices(0, p, p + 1)[0] for p in positions[valid].tolist()]]
            assert all(count % together == 0 for count in Counter(mine.tolist()).values())
            joined[number] += mine.tolist()
    assert joined == alone


def test_identities_of_few_images_are_repeated_or_dropped():
    _, labels, records = identities([9, 2, 9, 1, 4], per_batch=2, together=4)
    assert {1, 3} <= set(labels.ravel())
    few = records[labels[:, :, 0] == 1][0]
    assert Counter(Counter(few.tolist()).values()) == {2: 2}  # two images, twice each
    _, labels, _ = identities([9, 2, 9, 1, 4], per_batch=2, together=4, short="drop")
    assert not {1, 3} & set(labels.ravel()) and 0 in labels


def test_junk_is_left_out_or_kept():
    index = FakeIndex(np.repeat([-1, 0, 1, 2], 5))
    for junk, known in (("drop", {0, 1, 2}), ("keep", {-1, 0, 1, 2})):
        sampler = IdentitySampler(
            20, index, batch_size=len(known) * 2, images_per_identity=2, junk=junk
        )
        assert set(index.column("label")[sampler.indices(0, 0, len(sampler))]) == known


def test_another_column_may_say_the_identity():
    index = index_of([6, 6])
    index._columns["camera"] = np.arange(12) % 3
    sampler = IdentitySampler(
        12, index, batch_size=6, identities=3, images_per_identity=2, column="camera"
    )
    cameras = index.column("camera")[sampler.indices(0, 0, len(sampler))].reshape(-1, 3, 2)
    assert all(set(batch) == {0, 1, 2} for batch in cameras[:, :, 0].tolist())
    assert sampler.same == ("camera",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 24}, "6 different identities for each batch, but the data has 5.*; lower"),
        ({"batch_size": 20, "short": "drop"}, r"has 3 \(2 left out by short=drop, junk=drop\)"),
        ({"batch_size": 8, "column": "person"}, "no column 'person' in the index; columns: label"),
        ({"batch_size": 8, "column": "size"}, "column 'size' is float64, expected whole numbers"),
    ],
)
def test_identity_arguments_that_make_no_sense_are_refused(arguments, message):
    index = index_of([9, 2, 9, 1, 4])
    with pytest.raises(ValueError, match=message) as caught:
        IdentitySampler(25, index, **arguments)
    assert "\n" not in str(caught.value)


def test_any_identities_meet_and_any_image_comes_first():
    """Chi-square over epochs: pairs in a batch, an identity's place, an image's place."""
    sizes, per_batch, together = [4] * 8, 4, 2
    meetings, places, firsts = Counter(), np.zeros((4, 8)), np.zeros((8, 4))
    index = index_of(sizes)
    labels = index.column("label")
    within = np.zeros(32, np.int64)
    for label in range(8):
        within[labels == label] = np.arange(4)
    members = Members.of(labels)
    for epoch in range(1500):
        order = epoch_of_classes(
            members, np.full(8, 2), (4, per_batch, together), 1, epoch
        )  # fmt: skip
        drawn = labels[order[:, :, 0]]
        if epoch % 2:  # the batches of one epoch are not independent: one of each
            meetings.update(frozenset(pair) for pair in combinations(drawn[epoch % 4].tolist(), 2))
            np.add.at(places, (np.arange(4), drawn[epoch % 4]), 1)
        firsts[labels[order[0, 0, 0]], within[order[0, 0, 0]]] += 1
    assert len(meetings) == 28
    assert fits(np.array(list(meetings.values())), np.full(28, 750 * 6 / 28))
    assert fits(places.ravel(), np.full(32, 750 / 8))
    assert fits(firsts.ravel(), np.full(32, 1500 / 32))


def test_in_one_epoch_every_identity_meets_every_other():
    _, labels, _ = identities([400] * 6, per_batch=3, together=4)
    company = Counter(
        pair for batch in labels[:, :, 0].tolist() for pair in combinations(sorted(batch), 2)
    )
    assert len(labels) == 200 and len(company) == 15
    assert min(company.values()) > 20 and max(company.values()) < 60  # 40 of each are expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6))
def test_the_most_batches(quotas, per_batch):
    found = batches_without_repeats(np.array(quotas), per_batch)
    tried = [
        b for b in range(sum(quotas) + 1)
        if sum(min(q, b) for q in quotas) >= per_batch * b
    ]  # fmt: skip
    assert found == max(tried)


@QUICK
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(1, 7), st.integers(0, 2))
def test_balanced_batches_are_exact(sizes, classes, together, num_batches, epoch):
    assume(classes <= len(sizes))
    index = index_of(sizes)
    batch_size = classes * together
    sampler = BalancedBatchSampler(
        len(index), index, batch_size=batch_size, classes=classes, num_batches=num_batches
    )
    assert len(sampler) == num_batches * batch_size and sampler.group == classes
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


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_rank_is_balanced(world_size):
    index = index_of([9, 2, 9, 1, 4])
    sampler = BalancedBatchSampler(25, index, batch_size=20)
    for rank in range(world_size):
        plan = BatchPlan(len(sampler), 20, world_size, rank, group=sampler.group)
        for number in range(len(plan)):
            positions, valid = plan.batch(number)
            records = [sampler.indices(0, p, p + 1)[0] for p in positions[valid].tolist()]
            assert len(set(np.bincount(index.column("label")[records], minlength=5))) <= 1


def test_balanced_arguments_that_make_no_sense_are_refused():
    index = index_of([3, 3, 3, 3])
    with pytest.raises(ValueError, match=r"batch_size 6 does not hold 4 classes equally .*=8, or"):
        BalancedBatchSampler(12, index, batch_size=6)
    with pytest.raises(ValueError, match="classes is 5, but the data has 4"):
        BalancedBatchSampler(12, index, batch_size=10, classes=5)
    with pytest.raises(ValueError, match="no column 'label' in the index; columns: none"):
        BalancedBatchSampler(12, None, batch_size=4)


@QUICK
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_infinite_goes_through_the_data_again_and_again(n, batch_size, steps):
    sampler = InfiniteSampler(n, seed=5, batch_size=batch_size, steps=steps)
    assert len(sampler) == batch_size * steps
    found = np.concatenate([sampler.indices(epoch, 0, len(sampler)) for epoch in range(4)])
    passes = [RandomSampler(n, seed=5).indices(e, 0, n) for e in range(-(-found.size // n))]
    assert np.array_equal(found, np.concatenate(passes)[: found.size])


def test_infinite_needs_no_memory_and_fills_its_batches():
    sampler = InfiniteSampler(10**12, seed=5, batch_size=64, steps=100)
    assert np.array_equal(
        sampler.indices(10**6, 3, 9),
        RandomSampler(10**12, seed=5).indices(0, 6_400_000_003, 6_400_000_009),
    )
    assert len(InfiniteSampler(53, batch_size=8)) == 56

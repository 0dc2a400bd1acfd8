"""Bad samples: raised, replaced, skipped; counted, logged, listed; and too many of them."""

from __future__ import annotations

import csv
import logging

import pytest

from penstock.pipeline.loader.faults import BadSampleError
from penstock.pipeline.samplers.random import RandomSampler
from tests.pipeline.loader.fakes import FakeDataset, FakeStream, digests, make_loader

N = 400
BAD = (3, 17, 200, 399)


class SameLabel(RandomSampler):
    same = ("label",)


def _rows(loader) -> list[tuple[int, int, bool]]:
    """(position, index, valid) of every row."""
    return [
        row
        for batch in loader
        for row in zip(
            batch["position"].tolist(),
            batch["index"].tolist(),
            batch["valid"].tolist(),
            strict=True,
        )
    ]


def test_replace_changes_the_bad_rows_and_nothing_else():
    sampler = RandomSampler(N)
    good = _rows(make_loader(FakeDataset(N), sampler))
    loader = make_loader(FakeDataset(N, bad=BAD), sampler)
    rows = _rows(loader)
    assert [row[0] for row in rows] == list(range(N)), "positions stay"
    changed = [was[1] for was, now in zip(good, rows, strict=True) if was != now]
    assert sorted(changed) == sorted(BAD)
    assert not {row[1] for row in rows} & set(BAD) and all(row[2] for row in rows)
    assert loader.stats.bad_samples == 4 and loader.stats.samples == N


def test_no_quarantined_record_replaces_a_bad_one():
    loader = make_loader(FakeDataset(8, bad=[1], crash=3), RandomSampler(8), max_error_rate=1)
    loader.load_state_dict(loader.state_dict() | {"quarantined": [3]})
    assert not {row[1] for _ in range(30) for row in _rows(loader)} & {1, 3}


def test_an_item_of_a_stream_is_quarantined_in_its_own_epoch():
    loader = make_loader(FakeStream(20))
    loader.load_state_dict(loader.state_dict() | {"quarantined": [[0, 5]]})
    epochs = [{row[1] for row in _rows(loader)} for _ in range(2)]
    assert epochs == [{*range(20)} - {5}, {*range(20)}]


def test_replacements_are_of_the_same_class_if_the_sampler_asks_for_it():
    dataset = FakeDataset(N, bad=range(0, N, 7))
    labels = dataset.index.column("label")
    sampler = SameLabel(N)
    asked = sampler.indices(0, 0, N)
    rows = _rows(make_loader(dataset, sampler, max_error_rate=1.0))
    assert all(labels[asked[position]] == labels[index] for position, index, _ in rows)
    rows = _rows(make_loader(dataset, RandomSampler(N), max_error_rate=1.0))
    assert not all(labels[asked[position]] == labels[index] for position, index, _ in rows)


def test_skip_shrinks_the_batch():
    loader = make_loader(FakeDataset(N, bad=BAD), on_error="skip")
    rows = _rows(loader)
    assert [row[1] for row in rows] == [index for index in range(N) if index not in BAD]
    assert loader.stats.bad_samples == 4 and loader.stats.samples == N - 4


def test_a_rank_that_skips_all_gets_one_invalid_row():
    dataset = FakeDataset(N, bad=range(8, 12))
    loaders = [
        make_loader(dataset, on_error="skip", rank=rank, world_size=2, max_error_rate=1)
        for rank in range(2)
    ]
    batches = [list(loader) for loader in loaders]
    assert len(batches[0]) == len(batches[1]) == N // 8
    assert batches[0][1]["valid"].tolist() == [False]
    assert batches[0][1]["position"].item() == 11 and batches[0][1]["index"].item() not in range(
        8, 12
    )
    assert batches[1][1]["valid"].tolist() == [True] * 4


def test_raise_says_it_in_one_line():
    loader = make_loader(FakeDataset(N, bad=BAD), on_error="raise", engine="torch",
                         num_workers=1)  # fmt: skip
    with (
        loader,
        pytest.raises(BadSampleError, match=r"fake /data: 'img/0000003.jpg' at position 3"),
    ):
        digests(loader)
    with pytest.raises(ValueError) as caught:
        digests(make_loader(FakeDataset(N, bad=BAD), on_error="raise"))
    assert "\n" not in str(caught.value) and "loader.on_error" in str(caught.value)


def test_evaluation_skips_and_takes_everything_once():
    loader = make_loader(FakeDataset(N, bad=BAD), split="val", eval_batch_size=30, batch_size=8)
    for _ in range(2):
        rows = _rows(loader)
        assert [row[1] for row in rows] == [i for i in range(N) if i not in BAD]
        assert loader.epoch == 0
    assert loader.batch_size == 30


def test_all_bad_stops():
    with pytest.raises(BadSampleError, match="8 records drawn to replace it are bad as well"):
        digests(make_loader(FakeDataset(40, bad=range(40))))
    with pytest.raises(BadSampleError):
        digests(make_loader(FakeDataset(40, bad=range(40)), on_error="skip"))


@pytest.mark.parametrize(
    ("bad", "rate", "stops_after"),
    [(1, 0.0, 1), (1, 0.05, None), (9, 0.001, None), (30, 0.05, 400), (15, 0.05, None),
     (60, 0.05, 56)],
)  # fmt: skip
def test_the_error_rate_stops_a_run(bad, rate, stops_after):
    loader = make_loader(FakeDataset(N, bad=range(bad)), max_error_rate=rate)
    if stops_after is None:
        assert len(_rows(loader)) == N
        return
    with pytest.raises(BadSampleError, match=rf"max_error_rate={rate:g} .*fake /data: 'img/"):
        _rows(loader)
    assert abs(loader._bad_samples._positions - stops_after) < 8


def test_bad_samples_are_logged_once_and_listed_every_time(tmp_path, caplog):
    path = tmp_path / "run" / "bad_samples.csv"
    loader = make_loader(FakeDataset(N, bad=BAD), RandomSampler(N), bad_samples_path=path)
    with caplog.at_level(logging.WARNING):
        digests(loader, epochs=2)
    assert len(caplog.messages) == 4
    assert "fake /data" in caplog.text and "img/0000399.jpg" in caplog.text
    assert "position" in caplog.text and "truncated; replaced by index" in caplog.text
    rows = list(csv.DictReader(path.open()))
    assert list(rows[0]) == [
        "epoch", "position", "index", "key", "storage", "cause", "action", "split",
    ]  # fmt: skip
    assert sorted((int(row["epoch"]), int(row["index"])) for row in rows) == sorted(
        (epoch, index) for epoch in (0, 1) for index in BAD
    )


def test_padding_does_not_count_a_bad_sample_twice():
    loader = make_loader(FakeDataset(10, bad=(1,)), drop_last="pad", batch_size=8)
    rows = _rows(loader)
    assert loader.stats.bad_samples == 1 and loader.stats.samples == 10
    assert rows[1][:2] == rows[11][:2] and not rows[11][2], "with its draws"


@pytest.mark.parametrize(
    ("kind", "quarantined", "in_epoch_0"), [(FakeDataset, 13, 1), (FakeStream, [1, 13], 0)]
)
def test_a_quarantined_record_is_so_in_all_epochs_and_an_item_in_its_own(
    kind, quarantined, in_epoch_0
):
    loader = make_loader(kind(40), max_error_rate=1)
    loader.load_state_dict(loader.state_dict() | {"quarantined": [quarantined]})
    assert [row[0] for row in _rows(loader)] == list(range(40))
    assert loader.stats.bad_samples == in_epoch_0
    digests(loader)
    assert loader.stats.bad_samples == in_epoch_0 + 1


def test_a_stream_skips_where_it_should_replace():
    loader = make_loader(FakeStream(20, bad=(3, 8, 9, 10, 11)), batch_size=4, max_error_rate=1)
    batches = [*loader]
    found = [n for batch in batches for n in batch["position"][batch["valid"]].tolist()]
    assert found == [0, 1, 2, 4, 5, 6, 7, *range(12, 20)]
    assert [len(batch["valid"]) for batch in batches] == [3, 4, 1, 4, 4]
    assert loader.stats.bad_samples == 5
    bad = FakeStream(20, bad=range(8, 12))
    part = [*make_loader(bad, batch_size=8, max_error_rate=1, rank=0, world_size=2)]
    assert [batch["valid"].tolist() for batch in part][1] == [False]
    with pytest.raises(BadSampleError, match="all records of rank 1 are bad"):
        none = FakeStream(20, bad=range(20))
        [*make_loader(none, batch_size=8, max_error_rate=1, rank=1, world_size=2)]

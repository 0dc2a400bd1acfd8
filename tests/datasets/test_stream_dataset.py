"""A stream by the loader: the same batches on any ranks, with any workers, from any batch on."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.contracts import StreamDataset
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.streams.dataset import LaneStreamDataset, open_stream
from penstock.datasets.streams.lanes import ShardItems
from penstock.datasets.streams.sources import GeneratorSource
from penstock.pipeline.loader.digest import row_digests
from penstock.transforms.decode.raw import RawDecoder
from tests.pipeline.loader.fakes import digests, make_loader


class Noise:
    """Adds a draw, so that the pixels tell the position."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "image": sample["image"] ^ rng.integers(0, 256, (3, 3, 3), np.uint8)}


def image_of(key: str) -> dict[str, Any]:
    return {"image": np.full((3, 3, 3), len(key), np.uint8), "label": len(key) % 3}


def fields(key: str) -> dict[str, Any]:
    return {"key": key, **image_of(key)}


class Sizes:
    """Shards of given sizes; a bad record where `bad` says so."""

    reopens = True

    def __init__(self, sizes: list[int], bad: tuple[str, ...] = ()) -> None:
        self.sizes = sizes
        self.bad = bad

    def __str__(self) -> str:
        return "sizes"

    def shards(self, epoch: int) -> range:
        return range(len(self.sizes))

    def open(self, shard: int) -> Any:
        keys = [f"{shard}-{number}" for number in range(self.sizes[shard])]
        items = (
            BadRecord(-1, k, "spoilt") if k in self.bad else Record(-1, k, image_of(k))
            for k in keys
        )
        return ShardItems(items, close=lambda: None)

    def load(self, item: Any) -> Any:
        return item

    def fingerprint(self) -> str:
        return f"{self.sizes}"


def stream(sizes: list[int], *, bad: tuple[str, ...] = (), **changes: Any) -> LaneStreamDataset:
    arguments = {"lanes": 3, "shuffle_window": 4, **changes}
    return LaneStreamDataset(
        Sizes(sizes, bad), decode=RawDecoder(), transform=Noise(), seed=3, **arguments
    )


SIZES = [5, 0, 7, 1, 13, 4, 8]
ALL = sorted(f"{s}-{n}" for s, size in enumerate(SIZES) for n in range(size))


def keys_of(loader: Any) -> list[str]:
    return [
        key
        for batch in loader
        for key, valid in zip(batch["key"], batch["valid"].tolist(), strict=True)
        if valid
    ]


@pytest.mark.parametrize(
    "way",
    [
        {"engine": "threads", "num_workers": 3},
        {
            "engine": "processes",
            "num_workers": 2,
            "processes": 2,
            "multiprocessing_context": "fork",
        },
        {"engine": "torch", "num_workers": 2, "multiprocessing_context": "fork"},
        {"engine": "auto"},
    ],
    ids=str,
)
def test_all_ways_to_run_give_the_same_batches(way):
    with make_loader(stream(SIZES)) as loader:
        expected = [digests(loader) for _ in range(3)]
    assert len({digest for epoch in expected for digest in epoch}) == 15, "epochs differ"
    with make_loader(stream(SIZES), **way) as loader:
        assert [digests(loader) for _ in range(3)] == expected


def test_an_epoch_is_every_record_once_in_another_order():
    with make_loader(stream(SIZES)) as loader:
        first, second = keys_of(loader), keys_of(loader)
    assert sorted(first) == sorted(second) == ALL and first != second
    plain = stream(SIZES, shuffle=False, shuffle_window=0)
    with make_loader(plain) as loader:
        first, second = keys_of(loader), keys_of(loader)
    assert first == second and first[:5] == ["0-0", "4-0", "2-0", "0-1", "4-1"]
    with make_loader(plain) as loader:
        assert isinstance(plain, StreamDataset)
        with pytest.raises(TypeError):
            len(loader)


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 5), st.integers(0, 6),
    st.integers(1, 4), st.sampled_from([True, False, "pad"]), st.integers(1, 9), st.data(),
)  # fmt: skip
def test_ranks_share_each_batch_and_go_on_anywhere(
    sizes, lanes, window, ranks, tail, batch_size, data
):
    def loader(**more: Any) -> Any:
        dataset = stream(sizes, lanes=lanes, shuffle_window=window)
        return make_loader(dataset, batch_size=batch_size, drop_last=tail, **more)

    with loader() as whole:
        batches = [row_digests(batch) for batch in whole]
    full, rest = divmod(sum(sizes), batch_size)
    valid = [batch_size] * full + ([rest] if rest and tail is not True else [])
    assert [len(batch) for batch in batches] == valid, "each record once"
    joined: list[list[str]] = [[] for _ in batches]
    for rank in range(ranks):
        with loader(rank=rank, world_size=ranks) as part:
            mine = [row_digests(batch) for batch in part]
        assert len(mine) == len(batches), "as many batches on every rank"
        for rows, more in zip(joined, mine, strict=True):
            rows += more
    assert joined == batches
    step = data.draw(st.integers(0, len(batches)))
    rank = data.draw(st.integers(0, ranks - 1))
    with loader(rank=rank, world_size=ranks) as resumed, loader(rank=rank, world_size=ranks) as one:
        expected = digests(one)
        resumed.load_state_dict({**one.state_dict(), "next_batch": step, "finished": False})
        assert digests(resumed) == expected[step:]


def test_bad_records_keep_their_positions():
    bad = ("2-3", "4-12")
    with make_loader(stream(SIZES, bad=bad), max_error_rate=1) as loader:
        found = keys_of(loader)
        assert loader.stats.bad_samples == 2
    with make_loader(stream(SIZES)) as whole:
        assert found == [key for key in keys_of(whole) if key not in bad]


class Cut(Sizes):
    """Damage ends the last shard."""

    def open(self, shard: int) -> Any:
        damage = BadRecord(-1, "damage", "what comes behind it is lost", ends_shard=True)
        last = [damage] if shard == len(self.sizes) - 1 else []
        return ShardItems(chain(super().open(shard), last), close=lambda: None)


@pytest.mark.parametrize("val", [False, True])
def test_damage_that_ends_a_shard_concerns_every_split(val, caplog):
    def dataset(**changes: Any) -> LaneStreamDataset:
        source: Any = Cut([9, 9])
        changes = {"keep": lambda key: (key in ("0-3", "1-4")) == val, **changes}
        return LaneStreamDataset(
            source, decode=RawDecoder(), transform=Noise(), seed=0, **{"lanes": 2, **changes}
        )

    with make_loader(dataset(), max_error_rate=1, drop_last=False) as loader:
        assert len(keys_of(loader)) == (2 if val else 16)
        assert loader.stats.bad_samples == 1
    with make_loader(dataset(lanes=1, shuffle=False), batch_size=16, drop_last=True) as loader:
        keys_of(loader)
        assert "sizes: 'damage': what comes behind it is lost" in caplog.text


class Once(Sizes):
    reopens = False


def test_what_is_read_once_is_read_by_one_and_from_its_beginning():
    def dataset() -> LaneStreamDataset:
        return LaneStreamDataset(Once([9]), decode=RawDecoder(), transform=Noise(), seed=3)

    with pytest.raises(ValueError, match="one reader, and 2 ranks"):
        make_loader(dataset(), world_size=2, rank=0)
    with make_loader(dataset()) as loader:
        assert len(keys_of(loader)) == 9
        with pytest.raises(ValueError, match="for epoch 1: it is read once"):
            list(loader)
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": 1,
                                "finished": False})  # fmt: skip
        with pytest.raises(ValueError, match="at position 8 of epoch 0"):
            list(loader)


def numbers(start: int, stop: int, shard: int, num_shards: int) -> Iterator[dict[str, Any]]:
    """A range of numbers, cut into ranges."""
    size = -(-(stop - start) // num_shards)
    for number in range(start + shard * size, min(start + (shard + 1) * size, stop)):
        yield fields(f"n{number:03d}")


def every_nth(count: int, shard: int, num_shards: int) -> Iterator[dict[str, Any]]:
    """Numbers, each shard every n-th."""
    for number in range(shard, count, num_shards):
        yield fields(f"n{number:03d}")


def plain(count: int) -> Iterator[dict[str, Any]]:
    """Numbers without shards."""
    for number in range(count):
        yield fields(f"n{number:03d}")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(numbers, {"start": 0, "stop": 50}), (every_nth, {"count": 50}), (plain, {"count": 50})],
    ids=["range", "interleaved", "plain"],
)
@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_generators_give_everything_once_however_they_are_cut(function, arguments, lanes):
    recipe = StorageRecipe(function, arguments)

    def dataset(split: str, val_fraction: float) -> LaneStreamDataset:
        return open_stream(
            recipe, decode=RawDecoder(), lanes=lanes, shuffle_window=5, transform=Noise(), seed=0,
            val_fraction=val_fraction, split=split,  # type: ignore[arg-type]
        )  # fmt: skip

    everything = [f"n{number:03d}" for number in range(50)]
    with make_loader(dataset("train", 0), num_workers=2, engine="threads") as loader:
        assert sorted(keys_of(loader)) == everything
    found: list[str] = []
    for split in ("train", "val"):
        with make_loader(dataset(split, 0.3)) as loader:
            part = keys_of(loader)
        assert len(part) > 5
        found += part
    assert sorted(found) == everything


def test_a_generator_that_fails_or_gives_nonsense_says_where():
    def failing() -> Iterator[Any]:
        yield fields("a")
        raise KeyError("gone")

    def nonsense() -> Iterator[Any]:
        yield 3

    def gaps() -> Iterator[Any]:
        yield from (fields("a"), None, fields("b"))

    def loader(function: Any) -> Any:
        source = GeneratorSource(function, {}, num_shards=4)
        dataset = LaneStreamDataset(source, decode=RawDecoder(), transform=Noise(), seed=0)
        return make_loader(dataset, max_error_rate=1)

    with loader(failing) as failed, pytest.raises(KeyError) as error:
        list(failed)
    assert "made item 0:1" in error.value.__notes__[0]
    with loader(nonsense) as failed, pytest.raises(TypeError, match="item 0:0 is int"):
        list(failed)
    with loader(gaps) as some:
        assert keys_of(some) == ["a", "b"] and some.stats.bad_samples == 1


def test_it_pickles_while_it_is_read():
    dataset = stream(SIZES)
    items = dataset.open(0, 0)
    next(items)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [item.key for item in copy.open(0, 1)] == [item.key for item in items]


def _reading() -> int:
    return sum(thread.name == "penstock-stream" for thread in threading.enumerate())


def test_a_reader_ends_with_whoever_reads():
    before = _reading()
    dataset = stream([10_000] * 3)
    with make_loader(dataset) as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
    items = dataset.open(0, 0)
    next(items)
    items.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 120
    while _reading() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _reading() == before

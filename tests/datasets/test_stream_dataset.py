"""A stream by the loader: the same batches on any ranks, with any workers, from any batch on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.contracts import Source, StreamDataset
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.streams.dataset import LaneStreamDataset, open_stream
from penstock.datasets.streams.sources import GeneratorSource
from penstock.pipeline.loader.digest import row_digests
from penstock.transforms.decode.raw import RawDecoder
from tests.contracts.source import check_source
from tests.pipeline.loader.fakes import digests, make_loader


class Noise:
    """Adds a draw, so that the pixels tell the position."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "image": sample["image"] ^ rng.integers(0, 256, (3, 3, 3), np.uint8)}


def image_of(key: str) -> dict[str, Any]:
    return {"image": np.full((3, 3, 3), len(key), np.uint8), "label": len(key) % 3}


def fields(key: str) -> dict[str, Any]:
    return {"key": key, **image_of(key)}


class Sizes(Source):
    """Shards of given sizes; a bad record where `bad` says so."""

    opened: set[int] | None = None

    def __init__(self, sizes: list[int], bad: tuple[str, ...] = ()) -> None:
        self.sizes = sizes
        self.bad = bad

    def __str__(self) -> str:
        return "sizes"

    def shards(self, epoch: int) -> range:
        return range(len(self.sizes))

    def read(self, shard: int, start: int) -> Any:
        if self.opened is not None:
            self.opened.add(shard)
        keys = [f"{shard}-{number}" for number in range(self.sizes[shard])]
        for k in keys[start:]:
            yield BadRecord(-1, k, "spoilt") if k in self.bad else Record(-1, k, image_of(k))

    def fingerprint(self) -> str:
        return f"{self.sizes}"


class Once(Sizes):
    """The same, which can be read only once."""

    reopens = False


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


def by_rank(loader: Any, ranks: int) -> list[list[list[str]]]:
    """Rows of every batch, by rank; the ranks iterate side by side and end together."""
    agreed = Agreement(ranks)

    def of_rank(rank: int) -> list[list[str]]:
        goes_on = partial(agreed.any_of, rank)
        try:
            with loader(rank=rank, world_size=ranks, goes_on=goes_on) as part:
                return [row_digests(batch) for batch in part]
        except ValueError:
            agreed.end()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        running = [pool.submit(of_rank, rank) for rank in range(ranks)]
    errors = [each.exception() for each in running]
    for error in errors:
        if isinstance(error, ValueError):
            raise error
    return [each.result() for each in running]


class Agreement:
    """Ranks in threads that tell each other whether they have records."""

    def __init__(self, ranks: int) -> None:
        self._told = [False] * ranks
        self._barrier = threading.Barrier(ranks, timeout=120)

    def end(self) -> None:
        """Let nobody wait for a rank that has stopped."""
        self._barrier.abort()

    def any_of(self, rank: int, has_records: bool) -> bool:
        self._told[rank] = has_records
        self._barrier.wait()
        found = any(self._told)
        self._barrier.wait()
        return found


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 2), st.lists(st.integers(1, 9), min_size=6, max_size=9),
    st.integers(1, 3), st.integers(0, 5), st.sampled_from([True, False, "pad"]),
    st.integers(6, 13), st.data(),
)  # fmt: skip
def test_readers_are_dealt_to_ranks(ranks, each, sizes, lanes, window, tail, batch_size, data):
    readers = ranks * each

    def loader(opened: set[int] | None = None, **more: Any) -> Any:
        dataset = stream(sizes, lanes=lanes, readers=readers, shuffle_window=window)
        dataset.source.opened = opened  # type: ignore[attr-defined]
        return make_loader(dataset, batch_size=batch_size, drop_last=tail, **more)

    with loader() as whole:
        batches = list(whole)
    rows = [row_digests(batch) for batch in batches]
    given = [row for batch in rows for row in batch]
    assert len(given) == len({*given}), "no record twice"
    lost = sum(sizes) - len(given)
    assert lost == 0 if tail is not True else 0 <= lost < batch_size
    if tail is not False and readers > 1:
        assert {len(batch["valid"]) for batch in batches} <= {batch_size}
    if ranks > 1:
        parts = by_rank(loader, ranks)
        assert [len(part) for part in parts] == [len(rows)] * ranks, "ranks end together"
        joined = [[row for part in parts for row in part[number]] for number in range(len(rows))]
        assert joined == rows
    step = data.draw(st.integers(0, len(batches)))
    with loader() as resumed, loader() as one:
        expected = digests(one)
        resumed.load_state_dict({**one.state_dict(), "next_batch": step, "finished": False})
        assert digests(resumed) == expected[step:]


def test_a_rank_opens_the_shards_of_its_readers_alone():
    opened: list[set[int]] = [set(), set()]

    def loader(rank: int, **more: Any) -> Any:
        dataset = stream([7] * 8, readers=4, shuffle_window=0)
        dataset.source.opened = opened[rank]  # type: ignore[attr-defined]
        return make_loader(dataset, rank=rank, **more)

    by_rank(loader, 2)
    assert [len(shards) for shards in opened] == [4, 4] and not opened[0] & opened[1]


def test_ranks_without_records_end_with_the_others_or_say_so():
    def loader(sizes: list[int], bad: tuple[str, ...] = (), **more: Any) -> Any:
        given = {"readers": 2, "shuffle": False, "shuffle_window": 0, "lanes": 1}
        return make_loader(stream(sizes, bad=bad, **given), max_error_rate=1, **more)

    assert by_rank(partial(loader, [0, 0], split="val"), 2) == [[], []]
    with pytest.raises(ValueError, match=r"of this rank lack records.*lower dataset\.readers"):
        by_rank(partial(loader, [9, 0]), 2)
    parts = by_rank(partial(loader, [3, 20], bad=("0-0",)), 2)
    assert [len(part) for part in parts] == [5, 5], "a bad first record fills no batch"


@pytest.mark.parametrize("kind", [Sizes, Once])
def test_a_rank_whose_rows_of_a_batch_are_bad_has_an_invalid_row(kind):
    bad = ("0-0", *(f"0-{number}" for number in range(4, 12)))

    def loader(**more: Any) -> Any:
        source = kind([20, 20], bad)
        given = {"decode": RawDecoder(), "transform": Noise(), "seed": 3, "shuffle": False}
        dataset = LaneStreamDataset(source, lanes=1, readers=2, **given)
        return make_loader(dataset, max_error_rate=1, **more)

    parts = by_rank(loader, 2)
    assert [[len(rows) for rows in part] for part in parts] == [[3, 0, 0, 4, 4], [4] * 5]
    with loader() as whole:
        assert [len(batch["valid"]) for batch in whole] == [7, 4, 4, 8, 8]


def test_readers_that_cannot_be_shared_say_what_can():
    with pytest.raises(ValueError, match=r"4 ranks .* evenly; type dataset\.readers=4, or 1"):
        make_loader(stream([3] * 9, readers=6), world_size=4, rank=0)
    with pytest.raises(ValueError, match=r"dataset\.readers is 9.* 8 .*loader\.batch_size"):
        make_loader(stream([3] * 9, readers=9))
    with make_loader(stream([3] * 9, readers=2), world_size=2, rank=0) as loader:
        with pytest.raises(ValueError, match="init_process_group"):
            next(iter(loader))
    recipe = StorageRecipe(numbers, {"start": 0, "stop": 50})
    opening = {"decode": RawDecoder(), "transform": Noise(), "seed": 0, "val_fraction": 0.0}
    assert len(open_stream(recipe, readers=3, split="train", **opening).source.shards(0)) == 12
    whole = StorageRecipe(plain, {"count": 50})
    with pytest.raises(ValueError, match=r"dataset\.readers is 3, .* has 1 shards.*type"):
        open_stream(whole, readers=3, split="train", **opening)


def test_bad_records_keep_their_positions():
    bad = ("2-3", "4-12")
    with make_loader(stream(SIZES, bad=bad), max_error_rate=1) as loader:
        found = keys_of(loader)
        assert loader.stats.bad_samples == 2
    with make_loader(stream(SIZES)) as whole:
        assert found == [key for key in keys_of(whole) if key not in bad]


class Cut(Sizes):
    """Damage ends the last shard."""

    def read(self, shard: int, start: int) -> Any:
        yield from super().read(shard, start)
        if shard == len(self.sizes) - 1:
            yield BadRecord(-1, "damage", "the rest is lost", ends_shard=True)


@pytest.mark.parametrize("val", [False, True])
def test_damage_that_ends_a_shard_concerns_every_split(val, caplog):
    def dataset(**changes: Any) -> LaneStreamDataset:
        source = Cut([9, 9])
        changes = {"keep": lambda key: (key in ("0-3", "1-4")) == val, **changes}
        return LaneStreamDataset(
            source, decode=RawDecoder(), transform=Noise(), seed=0, **{"lanes": 2, **changes}
        )

    with make_loader(dataset(), max_error_rate=1, drop_last=False) as loader:
        assert len(keys_of(loader)) == (2 if val else 16)
        assert loader.stats.bad_samples == 1
    with make_loader(dataset(lanes=1, shuffle=False), batch_size=16, drop_last=True) as loader:
        keys_of(loader)
        assert "sizes: 'damage': the rest is lost" in caplog.text


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
        with pytest.raises(ValueError, match="at item 8 of epoch 0"):
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
    check_source(lambda: GeneratorSource(function, arguments, num_shards=3), everything)
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


def _reading() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock-stream"}


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
    while _reading() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _reading() - before, "those of earlier tests may end meanwhile, too"

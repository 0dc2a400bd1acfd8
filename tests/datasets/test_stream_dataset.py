"""A stream by the loader: the same batches on any ranks, with any workers, from any batch on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.contracts import Source
from penstock.core.sample import BadRecord, Record
from penstock.datasets.records.splits import StorageRecipe
from penstock.datasets.streams.dataset import LaneStreamDataset
from penstock.datasets.streams.sources import GeneratorSource
from penstock.pipeline.commands.digest import row_digests
from penstock.transforms.decode.raw import RawDecoder
from tests.contracts.source import check_source
from tests.pipeline.loader.fakes import digests, make_loader
from tests.waiting import wait_until


class Noise:
    """Adds noise, so that pixels depend on the position."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "image": sample["image"] ^ rng.integers(0, 256, (3, 3, 3), np.uint8)}


def image_of(key: str) -> dict[str, Any]:
    return {"image": np.full((3, 3, 3), len(key), np.uint8), "label": len(key) % 3}


def fields(key: str) -> dict[str, Any]:
    return {"key": key, **image_of(key)}


class Sizes(Source):
    """Shards of given sizes; a bad record where `bad` says so."""

    def __init__(self, sizes: list[int], bad: tuple[str, ...] = ()) -> None:
        self.sizes = sizes
        self.bad = bad
        self.opened: set[int] = set()

    def __str__(self) -> str:
        return "sizes"

    def shards(self, epoch: int) -> range:
        return range(len(self.sizes))

    def read(self, shard: int, start: int) -> Any:
        self.opened.add(shard)
        keys = [f"{shard}-{number}" for number in range(self.sizes[shard])]
        for k in keys[start:]:
            yield BadRecord(-1, k, "spoilt") if k in self.bad else Record(-1, k, image_of(k))

    def fingerprint(self) -> str:
        return f"{self.sizes}"


class Once(Sizes):
    """A source that can be read only once."""

    reopens = False


def opened(make: Any, arguments: dict[str, Any], **changes: Any) -> LaneStreamDataset:
    given = {"decode": RawDecoder(), "transform": Noise(), "seed": 3, "split": "train"}
    recipe = StorageRecipe(make, arguments)
    return LaneStreamDataset(recipe, **{"val_fraction": 0.0, **given, **changes})


def stream(
    sizes: list[int], *, kind: Any = Sizes, bad: tuple[str, ...] = (), **changes: Any
) -> LaneStreamDataset:
    return opened(
        kind, {"sizes": sizes, "bad": bad}, **{"lanes": 3, "shuffle_window": 4, **changes}
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
        with pytest.raises(TypeError):
            len(loader)
    assert first == second and first[:5] == ["0-0", "4-0", "2-0", "0-1", "4-1"]


def by_rank(loader: Any, ranks: int) -> list[list[list[str]]]:
    """Return the rows of every batch, by rank; the ranks iterate in threads."""
    told, barrier = [False] * ranks, threading.Barrier(ranks, timeout=120)

    def any_of(rank: int, has_records: bool) -> bool:
        told[rank] = has_records
        barrier.wait()
        found = any(told)
        barrier.wait()
        return found

    def of_rank(rank: int) -> list[list[str]]:
        try:
            with loader(rank=rank, world_size=ranks, goes_on=partial(any_of, rank)) as part:
                return [row_digests(batch) for batch in part]
        except ValueError:
            barrier.abort()  # the others wait
            raise

    with ThreadPoolExecutor(ranks) as pool:
        running = [pool.submit(of_rank, rank) for rank in range(ranks)]
    for error in [each.exception() for each in running]:
        if isinstance(error, ValueError):
            raise error
    return [each.result() for each in running]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 2), st.lists(st.integers(1, 9), min_size=6, max_size=9),
    st.integers(1, 3), st.integers(0, 5), st.sampled_from([True, False, "pad"]),
    st.integers(6, 13), st.data(),
)  # fmt: skip
def test_readers_are_dealt_to_ranks(ranks, each, sizes, lanes, window, tail, batch_size, data):
    readers = ranks * each

    seen: dict[int, set[int]] = {}

    def loader(**more: Any) -> Any:
        dataset = stream(sizes, lanes=lanes, readers=readers, shuffle_window=window)
        seen[more.get("rank", -1)] = dataset.source.opened = set()  # type: ignore[attr-defined]
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
        opened = [shard for rank in range(ranks) for shard in seen[rank]]
        assert len(opened) == len({*opened}), "a rank opens the shards of its readers alone"
    step = data.draw(st.integers(0, len(batches)))
    with loader() as resumed, loader() as one:
        expected = digests(one)
        resumed.load_state_dict({**one.state_dict(), "next_batch": step, "finished": False})
        assert digests(resumed) == expected[step:]


def test_ranks_without_records_end_with_the_others_or_raise():
    def loader(sizes: list[int], bad: tuple[str, ...] = (), **more: Any) -> Any:
        given = {"readers": 2, "shuffle": False, "shuffle_window": 0, "lanes": 1}
        return make_loader(stream(sizes, bad=bad, **given), max_error_rate=1, **more)

    assert by_rank(partial(loader, [0, 0], split="val"), 2) == [[], []]
    with pytest.raises(ValueError, match=r"of this rank lack records.*lower dataset\.readers"):
        by_rank(partial(loader, [9, 0]), 2)
    parts = by_rank(partial(loader, [3, 20], bad=("0-0",)), 2)
    assert [len(part) for part in parts] == [5, 5], "a bad first record fills no batch"


def test_readers_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match=r"4 ranks .* evenly; type dataset\.readers=4, or 1"):
        make_loader(stream([3] * 9, readers=6), world_size=4, rank=0)
    with pytest.raises(ValueError, match=r"dataset\.readers is 9.* 8 .*loader\.batch_size"):
        make_loader(stream([3] * 9, readers=9))
    with make_loader(stream([3] * 9, readers=2), world_size=2, rank=0) as loader:
        with pytest.raises(ValueError, match="init_process_group"):
            next(iter(loader))
    source = opened(numbers, {"start": 0, "stop": 50}, readers=3).source
    assert len(source.shards(0)) == 12
    with pytest.raises(ValueError, match=r"dataset\.readers is 3, .* has 1 shards; type"):
        opened(plain, {"count": 50}, readers=3)


class Cut(Sizes):
    """Damage ends the last shard."""

    def read(self, shard: int, start: int) -> Any:
        yield from super().read(shard, start)
        if shard == len(self.sizes) - 1:
            yield BadRecord(-1, "damage", "the rest is lost", ends_shard=True)


@pytest.mark.parametrize("split", ["train", "val"])
def test_damage_that_ends_a_shard_concerns_every_split(split, caplog):
    changes = {"kind": Cut, "split": split, "val_fraction": 0.3, "shuffle_window": 0}
    with make_loader(stream([9, 9], **changes), max_error_rate=1, drop_last=False) as loader:
        count = len(keys_of(loader))
        assert 0 < count < 18 and loader.stats.bad_samples == 1
    dataset = stream([9, 9], lanes=1, shuffle=False, **changes)
    with make_loader(dataset, batch_size=count, drop_last=True) as loader:
        keys_of(loader)
    assert "sizes: 'damage': the rest is lost" in caplog.text


def test_a_source_that_is_read_once_has_one_reader_and_no_resume():
    dataset = partial(stream, [9], kind=Once, lanes=4)
    with pytest.raises(ValueError, match="one reader, and 2 ranks"):
        make_loader(dataset(), world_size=2, rank=0)
    with make_loader(dataset()) as loader:
        assert len(keys_of(loader)) == 9
        with pytest.raises(ValueError, match="of epoch 1 cannot be read: it is read once"):
            list(loader)
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": 1,
                                "finished": False})  # fmt: skip
        with pytest.raises(ValueError, match="item 8 of epoch 0"):
            list(loader)


def numbers(start: int, stop: int, shard: int, num_shards: int) -> Iterator[dict[str, Any]]:
    """A range of numbers, cut into ranges."""
    size = -(-(stop - start) // num_shards)
    for number in range(start + shard * size, min(start + (shard + 1) * size, stop)):
        yield fields(f"n{number:03d}")


def plain(count: int) -> Iterator[dict[str, Any]]:
    """Numbers without shards."""
    for number in range(count):
        yield fields(f"n{number:03d}")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(numbers, {"start": 0, "stop": 50}), (plain, {"count": 50})],
    ids=["range", "plain"],
)
@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_generators_yield_every_record_once_over_any_lanes(function, arguments, lanes):
    def dataset(split: str, val_fraction: float) -> LaneStreamDataset:
        given = {"lanes": lanes, "shuffle_window": 5, "val_fraction": val_fraction, "split": split}
        return opened(function, arguments, **given)

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


def test_a_key_of_none_is_no_key():
    source = GeneratorSource(lambda: [{"key": None}, {"key": 7}], {}, num_shards=1)
    assert [record.key for record in source.read((0, None), 0)] == ["0:0", "7"]


def test_the_error_of_a_generator_names_the_item():
    def nonsense() -> Iterator[Any]:
        yield 3

    def gaps() -> Iterator[Any]:
        yield from (fields("a"), None, fields("b"))

    def loader(function: Any) -> Any:
        return make_loader(opened(function, {}), max_error_rate=1)

    with loader(nonsense) as failed, pytest.raises(TypeError, match="item 0:0 is int"):
        list(failed)
    with loader(gaps) as some:
        assert keys_of(some) == ["a", "b"] and some.stats.bad_samples == 1


def _reading() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock-stream"}


def test_a_reader_ends_with_its_iteration():
    before = _reading()
    dataset = stream([10_000] * 3)
    with make_loader(dataset) as loader:
        for _ in zip(range(3), loader, strict=False):
            pass
    items = dataset.open(0, 0)
    next(items)
    items.close()  # type: ignore[attr-defined]
    wait_until(lambda: not _reading() - before, "a reader still runs")

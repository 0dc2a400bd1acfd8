"""The parts of the bench: what is tried, what is printed, and what is drawn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.datasets.records.table import Table
from penstock.pipeline.build import build_settings, build_transform
from penstock.pipeline.commands.bench import advice as candidates
from penstock.pipeline.commands.bench import decoding
from penstock.pipeline.commands.bench import report as screen
from penstock.pipeline.commands.bench.advice import (
    Among,
    Bench,
    Candidate,
    Facts,
    Trial,
    advise,
    print_advice,
)
from penstock.pipeline.commands.bench.decoding import Decoding
from penstock.pipeline.commands.bench.subject import Round, alternate
from penstock.pipeline.commands.bench.sweep import Row, print_rows
from penstock.pipeline.config.compose import compose
from penstock.pipeline.loader.plan import BatchPlan
from penstock.pipeline.loader.stats import LoaderTimes
from penstock.pipeline.samplers.lengths import TokenBudgetSampler
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from tests.photographs import photograph, scene

CROPS = Decoding("", parts=1.0, crops_first=True)


def facts(**changes) -> Facts:
    given = {"limit": "loader", "workers": 2, "decoding": CROPS, "holds": True, "cuda": False,
             "engines": ("inline", "threads", "torch")}  # fmt: skip
    return Facts(**{**given, **changes})


def config_of(engine="torch", storage="image_folder", **changes) -> dict:
    return {
        "loader": {"engine": engine, "prefetch_factor": 2, **changes},
        "dataset": {"_target_": "dataset/map", "storage": {"_target_": f"storage/{storage}"}},
        "trainer": {"channels_last": False, "amp": "off"},
    }


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(candidates, "usable_cores", lambda: 4)


def typed(config: dict, known: Facts) -> list[str]:
    return [candidate.typed for candidate in candidates.candidates(config, known)]


def test_a_slow_loader_is_given_other_data_engines_and_workers():
    assert typed(config_of(), facts()) == [
        "pack, then dataset=lmdb", "pack.tiled=true, then dataset=lmdb", "dataset=eager",
        "loader.engine=threads", "loader.num_workers=4", "loader.num_workers=1",
        "loader.prefetch_factor=4",
    ]  # fmt: skip


def test_what_does_not_apply_is_not_tried():
    assert not [t for t in typed(config_of(storage="lmdb"), facts()) if t.startswith("pack,")]
    tiled = Decoding("", parts=1.0, crops_first=True, tiled=1.0)
    assert not [t for t in typed(config_of(), facts(decoding=tiled)) if "tiled" in t]
    whole = Decoding("", parts=0.0)
    assert not [t for t in typed(config_of(), facts(decoding=whole)) if "tiled" in t]
    assert "dataset=eager" not in typed(config_of(), facts(holds=False))
    assert not [t for t in typed(config_of(), facts(decoding=None)) if "dataset" in t]


def test_decoding_whole_by_choice_can_be_undone():
    chosen = Decoding("", parts=0.0, crops_first=True, by_choice=True)
    assert typed(config_of(), facts(decoding=chosen))[0] == "dataset.decode.region=exact"


def test_memory_is_pinned_on_cuda_alone():
    config = config_of(pin_memory=False)
    assert "loader.pin_memory=true" in typed(config, facts(cuda=True))
    assert "loader.pin_memory=true" not in typed(config, facts())


def test_no_worker_is_tried_with_some():
    assert typed(config_of(), facts(workers=0, decoding=None)) == [
        "loader.num_workers=4", "loader.num_workers=1",
    ]  # fmt: skip
    assert typed(config_of(engine="inline"), facts(workers=0, decoding=None)) == [
        "loader=threads loader.num_workers=4"
    ]


def test_cores_of_a_cluster_are_named_where_those_of_this_machine_are_at_work():
    def on_ray(**known) -> dict[str, Candidate]:
        found = candidates.candidates(config_of(**known.pop("loader", {})), facts(**known))
        return {c.typed: c for c in found if "=ray" in c.typed}

    four = {"workers": 4, "no_cluster": "start one"}
    assert on_ray(**four)["loader.engine=ray loader.num_workers=4"].lacks == "start one"
    both = {"workers": 4, "actors": 32}
    [(typed, found)] = on_ray(**both).items()
    assert typed == "loader.engine=ray loader.num_workers=32"
    assert not found.lacks
    for other in ({"workers": 2}, {"limit": "model"}, {"reading": 0.3}):
        assert not on_ray(**{**four, **other}), "local cores first, and what cores can help"


def test_actors_are_tried_up_to_those_that_there_is_room_for():
    def on_ray(workers, actors, **loader) -> list[str]:
        known = facts(workers=workers, actors=actors, decoding=None)
        found = typed(config_of(engine="ray", **loader), known)
        return [text for text in found if "prefetch" not in text]

    def many(actors):
        return f"loader.num_workers={actors}"

    assert on_ray(8, 64) == [many(64), many(16), many(4)]
    assert on_ray(8, 8) == [many(16), many(4)]
    assert on_ray(0, 6) == [many(6)]
    engines = ["loader.engine=threads loader.resources=null",
               "loader.engine=torch loader.resources=null"]  # fmt: skip
    assert on_ray(4, 4, resources={"CPU": 1})[2:] == engines, "as many as fit here"
    known = facts(workers=8, actors=8, decoding=None)
    lacking = [c for c in candidates.candidates(config_of(engine="ray"), known) if c.lacks]
    assert [c.typed for c in lacking] == [many(16)]
    assert "ray start --address=" in lacking[0].lacks


@pytest.mark.parametrize("engine", ["inline", "threads", "processes", "torch", "default", "ray"])
@pytest.mark.parametrize("limit", ["loader", "model"])
def test_what_is_advised_can_be_typed(engine, limit):
    given = [f"loader={engine}", "loader.num_workers=4"]
    given += ["loader.resources={CPU: 1}"] if engine == "ray" else []
    engines = ("inline", "threads", "processes", "torch", "ray")
    known = facts(limit=limit, workers=4, engines=engines, actors=8, reading=0.1, cuda=True)
    for candidate in candidates.candidates(compose(given), known):
        if candidate.how in ("typed", "cached"):
            build_settings(compose([*given, *candidate.overrides])["loader"])


def test_a_slow_model_is_given_other_arithmetic_and_says_so():
    found = list(candidates.candidates(config_of(), facts(limit="model")))
    assert [c.typed for c in found[:2]] == ["trainer.channels_last=true", "trainer.amp=bf16"]
    assert all(c.changes for c in found[:2])
    assert not any(c.changes for c in found[2:])


def advice(capsys, *trials: Trial) -> str:
    print_advice(trials, "the loader alone")
    return capsys.readouterr().out


def test_only_what_was_faster_every_time_is_recommended(capsys):
    out = advice(
        capsys,
        Trial(Candidate("a=1"), (1.2, 1.3, 1.25)),
        Trial(Candidate("b=2"), (1.9, 0.9, 1.8)),
        Trial(Candidate("c=3"), (1.01, 1.02, 1.01)),
        Trial(Candidate("d=4"), (0.5,)),
        Trial(Candidate("e=5"), failed="does not fit"),
        Trial(Candidate("f=6", changes="changes the pixels"), (3.0, 3.1, 3.2)),
    )
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "1.25x (1.20 to 1.30) a=1" in lines
    assert "but 3.10x (3.00 to 3.20) f=6: changes the pixels" in lines
    assert "uncertain 1.80x (0.90 to 1.90) b=2" in lines
    assert "no gain c=3 (1.01x), d=4 (0.50x)" in lines
    assert "not tried e=5: does not fit" in lines


def test_what_lacks_something_is_told_though_there_is_no_time(capsys):
    none = Bench(None, None, None, None, None)
    tried = [Candidate("a=1"), Candidate("b=2", lacks="start a cluster")]
    advise(none, tried, "the loader alone", budget_s=-1)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "not tried a=1: no time left; raise bench.try_seconds" in lines
    assert "not tried b=2: start a cluster" in lines


def test_three_are_recommended_the_best_first(capsys):
    trials = [Trial(Candidate(f"x={n}"), (1 + n / 10,)) for n in (1, 5, 2, 4, 3)]
    out = advice(capsys, *trials)
    assert [line.split("x=")[1] for line in out.splitlines() if "x=" in line] == ["5", "4", "3"]


def test_nothing_found_is_said(capsys):
    assert "nothing found that helps" in advice(capsys, Trial(Candidate("a=1"), (0.7,)))


def test_rounds_alternate_and_change_their_order():
    order: list[str] = []

    def measurement(name):
        def measure(seconds):
            order.append(name)
            return Round(1, seconds)

        return measure

    *_, results = alternate([measurement(n) for n in "abc"], seconds=3.0, rounds=3)
    assert "".join(order) == "abccbaabc"
    assert [[r.seconds for r in rounds] for rounds in results] == [[1.0] * 3] * 3


def test_a_sampler_among_few_records_draws_them_all_equally_often():
    rows = np.array([3, 5, 9])
    among = Among(rows, length=12)
    assert sorted(among.indices(0, 0, 12).tolist()) == [3] * 4 + [5] * 4 + [9] * 4
    assert len(Among(rows, length=4)) == 4


def test_a_sampler_among_few_records_has_batches_of_the_sizes_that_the_configured_one_cuts():
    rows, lengths = np.array([3, 5, 9, 11, 12]), np.array([40, 10, 10, 10, 30])
    index = Table(keys=list("abcde"), columns={"length": lengths})
    cutting = TokenBudgetSampler(5, index, 0, 4, max_tokens=40)
    among = pickle.loads(pickle.dumps(Among(rows, length=12, cutting=cutting)))
    plan = BatchPlan(len(among), 4, tail="keep", cuts=among.cuts)
    length_of = dict(zip(rows.tolist(), lengths.tolist(), strict=True))
    batches = [among.indices(0, *plan.bounds(n)).tolist() for n in range(plan.num_batches)]
    assert sorted(row for batch in batches for row in batch) == sorted(rows.tolist() * 3)
    tokens = [len(batch) * max(map(length_of.get, batch)) for batch in batches]
    assert max(tokens) <= 40 and sorted(map(len, batches)) == [1] * 6 + [3] * 3


def test_the_floor_counts_samples_of_all_threads():
    calls: list[int] = []
    found = decoding.Floor("copied", [(lambda: calls.append(1), 8)], 3)
    measured = found.round(0.02)
    assert measured.samples == 8 * len(calls) > 0
    assert found.text == "copied, 3 threads"


def round_of(rate: float, share: float = 0.0) -> Round:
    return Round(
        int(rate), 1.0, LoaderTimes(batches=1, samples=int(rate), wait=share, consumer=1 - share)
    )


def rows_of(*workers: int) -> list[Row]:
    return [
        Row({"loader.num_workers": str(n)}, [round_of(1000 * (n + 1)), round_of(1100 * (n + 1))],
            [round_of(900 + n, 0.5 / (n + 1))] * 2, first_batch_s=0.5, memory_bytes=10_000_000)
        for n in workers
    ]  # fmt: skip


def test_the_table_fits_a_narrow_terminal(capsys):
    rows = [*rows_of(0, 1, 4), Row({"loader.num_workers": "9"}, failed="too many of them")]
    print_rows(rows, ("loader.num_workers",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= screen.WIDTH
    assert lines[1].split()[:3] == ["num_workers", "loader/s", "ratio"]
    assert lines[3].split() == ["1", "2,100", "2.00", "901", "25%", "10", "MB", "0.50", "s"]
    assert lines[5].split() == ["9", *"------"]
    assert "too many of them" in lines[-1]


def test_a_cache_is_tried_where_much_of_the_time_is_reading():
    def tried(**known) -> dict[str, Candidate]:
        return {c.typed: c for c in candidates.candidates(config, facts(**known))}

    config = config_of()
    assert tried(reading=0.3)["dataset/cache=ram"].how == "cached"
    assert "dataset/cache=ram" not in tried(reading=0.1)
    config["dataset"]["cache"] = {"_target_": "cache/ram"}
    assert "dataset/cache=ram" not in tried(reading=0.3)


def test_what_is_decoded_is_told_and_what_a_missing_library_costs(monkeypatch):
    crops = build_transform(compose(["augment=imagenet"]), "train")
    plain, tiled = photograph(40, 50), write_tiled(scene(90, 90), quality=90)
    progressive = photograph(40, 50, progressive=True)

    def told(*images, found=True):
        monkeypatch.setattr(decoding, "region_decoder", lambda: found)
        records = [Record(n, "a", {"image": image}) for n, image in enumerate(images)]
        return decoding.look_at(ImageDecoder(), crops, records)

    known = told(plain, tiled, progressive, b"")
    assert (known.parts, known.tiled, known.crops_first) == (0.5, 0.25, True)
    assert known.text == (
        "of 2 of 4 images only what the first crop needs; "
        "whole: 1 (a progressive or unusual JPEG), 1 (damaged)"
    )
    assert "no TurboJPEG 3" in told(plain, tiled, found=None).text
    assert told(tiled, found=None).text == "of 1 of 1 images only what the first crop needs"

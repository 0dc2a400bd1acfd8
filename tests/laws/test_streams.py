"""Streams: every source, engine and number of ranks gives the same batches."""

from __future__ import annotations

import io
import random
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import (
    AUGMENTS,
    ENGINES,
    IMPORTS,
    INLINE,
    LOADER,
    digests,
    joined_rows,
    kill_worker,
    loader_of,
    rest,
    seen_in,
    way,
)
from tests.laws.runs import rows as whole_rows
from tests.laws.test_torchrun import TRAINER, check_same, trained
from tests.shares import in_turn
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("ash", "birch", "cedar", "dogwood")
SHARDS = (13, 1, 17, 10)  # of 41, in as many archives; no number of lanes or ranks divides them
SOURCES = ("files", "pipe", "generator")
WAYS: list[dict[str, Any]] = [
    {"engine": "threads", "num_workers": 3},
    {"engine": "processes", "num_workers": 2},
    {"engine": "torch", "num_workers": 2},
    {"engine": "torch", "num_workers": 3, "persistent_workers": False},
    {"engine": None},
]  # fmt: skip


def write_tars(photos: Path, root: Path, *, good: bool = False) -> Path:
    """Write the photographs as archives in a random order; `good` replaces the damaged one."""
    for split, sizes in (("train", SHARDS), ("val", (15,))):
        (root / split).mkdir()
        files = sorted((photos / split).glob("*/*.jpg"))
        random.Random(4).shuffle(files)
        for number, size in enumerate(sizes):
            part = [files.pop() for _ in range(size)]
            with tarfile.open(root / split / f"{number}.tar", "w") as archive:
                for file in part:
                    label = str(CLASSES.index(file.parent.name)).encode()
                    damaged = file.stat().st_size == 200
                    content = (file.with_name("04.jpg") if damaged and good else file).read_bytes()
                    for ending, value in (("cls", label), ("jpg", content)):
                        info = tarfile.TarInfo(f"{file.parent.name}/{file.stem}.{ending}")
                        info.size = len(value)
                        archive.addfile(info, io.BytesIO(value))
        assert not files
        (root / split / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root


@pytest.fixture(scope="module")
def tars(photos, tmp_path_factory) -> Path:
    """Return archives of the photographs, one of them damaged."""
    return write_tars(photos, tmp_path_factory.mktemp("tars"))


def overrides(tars: Path, photos: Path, source: str = "files", *, augment: str = "light") -> Any:
    """Return the overrides that a user types for a stream."""
    typed = ["dataset.shuffle_window=5", "dataset.lanes=3", *AUGMENTS[augment], *LOADER]
    if source == "files":
        data = [f"dataset.source.path={tars}"]
    elif source == "pipe":
        path = f"pipe:cat {tars}/train/{{0..3}}.tar"
        data = [f"dataset.source.path={path}", "dataset.val_fraction=0"]
        data += [f"dataset.source.classes=[{','.join(CLASSES)}]"]
    else:
        data = ["dataset/source=laws_photos", f"dataset.source.root={photos}/train"]
        data += ["dataset.val_fraction=0"]
    return [IMPORTS, "dataset=stream", *data, *typed]


@pytest.fixture(scope="module")
def expected(tars, photos):
    """Return config and hashes of two epochs by the inline engine, by source."""

    @lru_cache
    def of(source: str) -> Any:
        config = compose(overrides(tars, photos, source))
        return config, digests(config, **INLINE)

    return of


@pytest.mark.parametrize(("source", "way"), in_turn(SOURCES, WAYS))
def test_every_way_to_run_gives_the_batches_of_the_inline_engine(source, way, expected):
    config, hashes = expected(source)
    first, second = hashes
    assert len(first) == len(second) == len({*first}) == 7 and not {*first} & {*second}
    assert digests(config, **way) == hashes


def test_files_and_commands_give_the_same(expected):
    assert expected("files")[1] == expected("pipe")[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation_is_the_same_each_time(engine, tars, photos):
    config = compose(overrides(tars, photos))
    first, second = digests(config, split="val", **INLINE)
    assert first == second and len(first) == 3
    assert digests(config, split="val", **way(engine)) == [first, second]


@pytest.mark.parametrize("tail", [True, False, "pad"])
@pytest.mark.parametrize("source", ["files", "pipe"])
def test_the_union_of_the_ranks_is_the_epoch(source, tail, photos, tmp_path):
    # Nothing replaces the only row of a rank, so all photographs are good here.
    config = compose(overrides(write_tars(photos, tmp_path, good=True), photos, source))
    for batch_size in (3, 11):
        changes = {**INLINE, "batch_size": batch_size, "drop_last": tail}
        alone = whole_rows(config, **changes)
        full, left = divmod(41, batch_size)
        assert len(alone) == full + (tail is not True and left > 0)
        for world_size in (2, 4):
            joined = joined_rows(config, world_size, **changes)
            assert joined == alone, f"{world_size} ranks, batch size {batch_size}"


@pytest.mark.parametrize("source", SOURCES)
def test_a_state_resumes_after_every_batch_of_any_epoch(source, expected, caplog):
    config, hashes = expected(source)
    caplog.set_level("INFO")
    with loader_of(config, **INLINE) as loader:
        for epoch in range(2):
            batches = iter(loader)
            for step in range(8):
                state = loader.state_dict()
                way = WAYS[step % 2] if step in (3, 4) else INLINE
                with loader_of(config, **way) as other:
                    other.load_state_dict(state)
                    assert rest(other) == (hashes[epoch][step:] if step < 7 else [])
                next(batches, None)
            next(batches, None)
    assert "records skipped" in caplog.text


@pytest.mark.parametrize("engine", ENGINES)
def test_several_readers_give_the_same_to_every_engine(engine, tars, photos):
    config = compose([*overrides(tars, photos), "dataset.readers=2", "dataset.lanes=2"])
    expected = digests(config, **INLINE)
    assert digests(config, **way(engine)) == expected
    keys = [key for rows in whole_rows(config, **INLINE) for key in rows]
    assert len(keys) == len({*keys}) == 40, "and the damaged one"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_ranks_train_on_a_stream_as_one_process_does(photos, tmp_path):
    write_tars(photos, tmp_path, good=True)
    base = overrides(tmp_path, photos)
    configs = [
        compose([*base, *TRAINER, f"loader.batch_size={size}", f"loader.drop_last={tail}",
                 "loader.eval_batch_size=7", f"dataset.readers={readers}"])
        for size, tail, readers in ((6, "false", 1), (4, "pad", 1), (6, "false", 4))
    ]  # fmt: skip
    one = trained(configs, 1, tmp_path)
    two = trained(configs, 2, tmp_path)
    for alone, shared, steps in zip(one, two, (7, 11, None), strict=True):
        assert alone["step"] == steps or steps is None
        check_same(alone, shared)


def test_another_data_set_is_refused(tars, photos, tmp_path, expected):
    config, _ = expected("files")
    with loader_of(config, **INLINE) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = compose([*overrides(tars, photos), f"dataset.source.path={tars}/train"])
    with loader_of(other, **INLINE) as loader, pytest.raises(ValueError, match="data was"):
        loader.load_state_dict(state)
    lanes = compose([*overrides(tars, photos), "dataset.lanes=2"])
    with loader_of(lanes, **INLINE) as loader, pytest.raises(ValueError, match="lanes was 3"):
        loader.load_state_dict(state)


def test_a_killed_worker_is_replaced_and_changes_no_batch(expected, tars, photos, tmp_path):
    _, hashes = expected("pipe")
    config = compose([*overrides(tars, photos, "pipe"), seen_in(tmp_path)])
    way = {
        "engine": "processes",
        "num_workers": 2,
    }
    with loader_of(config, **way) as loader:
        given, killed = [], []
        for _ in range(2):
            for number, batch in enumerate(loader):
                given.append(batch_digest(batch))
                if number in (1, 4):
                    killed.append(kill_worker(tmp_path, spared=killed))
        # The third kill needs a replacement; the loader may end before it notices the last one.
        assert len(killed) == 4 and loader.stats.workers().restarts >= 2
    assert given == [*hashes[0], *hashes[1]]


@pytest.fixture
def cut(tars, tmp_path) -> Path:
    """Return the archives, one of them cut off in the middle of a photograph."""
    for file in (tars / "train").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    long = tmp_path / "2.tar"
    long.write_bytes(long.read_bytes()[: long.stat().st_size // 2])
    return tmp_path


def test_a_cut_archive_counts_as_one_bad_sample_and_stops_no_other(cut, tars, photos):
    data = [f"dataset.source.path={cut}", "dataset.val_fraction=0"]
    config = compose([*overrides(tars, photos), *data])
    with loader_of(config, **INLINE) as loader:
        keys = [key for batch in loader for key in batch["key"]]
        assert loader.stats.bad_samples == 2, "and the damaged photograph"
    assert 24 < len(keys) < 40
    config = compose([*overrides(tars, photos), *data, "loader.on_error=raise"])
    with loader_of(config, **INLINE) as loader, pytest.raises(ValueError) as error:
        list(loader)
    assert "2.tar" in str(error.value) or "03" in str(error.value)
    piped = [f"dataset.source.path=pipe:cat {cut}/{{0..3}}.tar"]
    config = compose([*overrides(tars, photos, "pipe"), *piped])
    with loader_of(config, **INLINE) as loader, pytest.raises(RuntimeError, match="broke off"):
        list(loader)


def test_a_command_that_fails_stops_the_run(tars, photos):
    path = f"pipe:sh -c 'cat {tars}/train/{{0..3}}.tar; exit 4'"
    config = compose([*overrides(tars, photos, "pipe"), f"dataset.source.path={path}"])
    for run in (INLINE, WAYS[0]):
        with loader_of(config, **run) as loader, pytest.raises(RuntimeError, match="exit code 4"):
            list(loader)


def test_a_stalled_command_stops_the_run(tars, photos):
    path = f"pipe:sh -c 'cat {tars}/train/{{0..3}}.tar; sleep 60'"
    typed = [*overrides(tars, photos, "pipe"), "dataset.source.timeout_s=0.5"]
    config = compose([*typed, f"dataset.source.path={path}"])
    for run in (INLINE, WAYS[1]):
        with loader_of(config, **run) as loader, pytest.raises(RuntimeError, match="gave no byte"):
            list(loader)


def test_waiting_can_be_interrupted(tars, photos):
    path = f"pipe:sh -c 'cat {tars}/train/{{0..3}}.tar; echo $$ >&2; sleep 60'"
    typed = [*overrides(tars, photos, "pipe"), f"dataset.source.path={path}", "dataset.lanes=1"]
    code = (
        "import sys; from penstock import build_loader, compose\n"
        "for batch in build_loader(compose(sys.argv[1:])): print('batch', flush=True)"
    )
    waiting = subprocess.Popen(
        [sys.executable, "-c", code, *typed, "loader=threads", "loader.num_workers=1"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A background job ignores Ctrl-C.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert waiting.stdout is not None and waiting.stderr is not None
    command = int(waiting.stderr.readline())  # all bytes are sent, but no end of file
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=250)
    assert "KeyboardInterrupt" in said
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(command)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, "the command still runs")


def test_compose_refuses_configs_that_cannot_work(tars, photos):
    base = overrides(tars, photos)
    for typed, said in (
        (["sampler=random"], "type sampler=sequential"),
        (["dataset.source.path=-"], "type trainer.max_epochs=1"),
        (["dataset.source.path=nowhere/x.tar"], "dataset.source.path"),
        (["dataset.source.fields={image: 3}"], "dataset.source.fields"),
        (["dataset.lanes=0"], "dataset.lanes"),
        (["dataset/storage=zip"], "dataset/stream takes no storage"),
        (["dataset=lmdb", "dataset/source=jsonl"], "type dataset=stream"),
        (["dataset.source.paht=x"], "dataset.source.path"),
        (["dataset/source=laws_photos", "dataset.source.shard=1"], "dataset.source.shard: 1 given"),
    ):
        with pytest.raises(ValueError, match=said):
            compose([*base, *typed])


def test_the_standard_input_trains_an_epoch(tars, photos, tmp_path):
    more = ["dataset.source.path=-", f"dataset.source.classes=[{','.join(CLASSES)}]"]
    more += ["trainer.max_epochs=1", "trainer.progress=off", f"outputs={tmp_path}/out"]
    more += ["loader.engine=threads", "loader.num_workers=2", "model.width=8", "trainer.device=cpu"]
    typed = [*overrides(tars, photos), *more]
    data = b"".join((tars / "train" / f"{number}.tar").read_bytes() for number in range(4))
    command = [sys.executable, str(ROOT / "train.py"), *typed]
    done = subprocess.run(command, input=data, capture_output=True, cwd=ROOT, timeout=250)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said = done.stderr.decode() + done.stdout.decode()
    assert "nothing validates" in said and "not validated" in said

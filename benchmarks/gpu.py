"""The way to a GPU: exactness, transfer, cores, waiting, overlap, memory, resuming.

    PYTHONPATH=src python benchmarks/gpu.py [--only SECTION,...] [--minutes 6] [--out outputs/gpu]

Every section prints rows of one table and adds them to ``results.json``. A section that fails
writes its error there, and the next one begins. The script needs no data: it makes arrays of noise
and JPEG files of about 110 kB. ``--cpu`` runs a very small version without a GPU, which only proves
that the script runs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [p for p in sys.path if p and Path(p).resolve() != ROOT]  # it has a `datasets`
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from family import members, processor_s  # noqa: E402
from gpu_setup import (  # noqa: E402
    TINY,
    Bench,
    HostAccelerator,
    Scale,
    Training,
    command_of,
    forever,
    light,
)
from overlap import overlap_share  # noqa: E402
from resnet import resnet  # noqa: E402

from penstock.pipeline.loader.device.accelerator import Accelerator, PageLock  # noqa: E402
from penstock.pipeline.loader.device.queue import DeviceQueue  # noqa: E402
from penstock.transforms.device.normalize import Normalize  # noqa: E402

Row = tuple[str, float, str]


def check_exactness(bench: Bench) -> Iterator[Row]:
    """Batches under random delays, early ends, kept batches and killed workers."""
    rng = random.Random(0)
    small = {"crop": min(64, bench.scale.crop), "batch_size": min(64, bench.scale.batch_size)}
    with bench.prepared(**small, num_workers=0) as loader:
        expected = [dict(batch) for batch in loader]
    fields = [name for name, value in expected[0].items() if isinstance(value, torch.Tensor)]

    def wrong(batch: Any, number: int) -> bool:
        return not all(torch.equal(batch[name].cpu(), expected[number][name]) for name in fields)

    for engine in ("threads", "processes", "inline", "torch"):
        checked = bad = 0
        with bench.prepared(**small, engine=engine, num_workers=4) as loader:
            queue = bench.queue(loader)
            for turn in range(bench.scale.rounds // 4 or 1):
                queue.set_epoch(0)
                kept: list[tuple[int, Any]] = []
                end = rng.choice([len(expected), rng.randrange(1, len(expected))])
                for number, batch in enumerate(islice(queue, end)):
                    bench.sleep(rng.choice([0, 0, 100_000, 3_000_000]))
                    is_kept = rng.random() < 0.3  # others are read late, by the device alone
                    taken = batch if is_kept else {name: batch[name].clone() for name in fields}
                    kept.append((number, taken))
                    del batch, taken
                    if rng.random() < 0.1:
                        time.sleep(rng.random() * 0.005)
                    if engine == "processes" and turn % 4 == 3 and number == 2:
                        os.kill(loader._scheduler._executor._workers[0].child.pid, signal.SIGKILL)
                    if len(kept) > rng.randrange(8, 40):
                        bad += sum(wrong(batch, number) for number, batch in kept)
                        checked += len(kept)
                        kept.clear()
                bad += sum(wrong(batch, number) for number, batch in kept)
                checked += len(kept)
        yield f"{engine}: batches", checked, ""
        yield f"{engine}: wrong", bad, "want 0"


def check_transfer(bench: Bench) -> Iterator[Row]:
    """Copies to the device from memory of several kinds."""
    size = 154 << 20 if not bench.is_trial else 1 << 20
    accelerator = HostAccelerator() if bench.is_trial else Accelerator(bench.device)
    lock = PageLock(accelerator)
    descriptor = os.memfd_create("bench")
    os.ftruncate(descriptor, size)
    start = time.perf_counter()
    mapped = lock.map(descriptor, size)
    yield "registering 154 MB, ms", (time.perf_counter() - start) * 1e3, ""
    arena = torch.frombuffer(mapped, dtype=torch.uint8)
    yield "registered memory is page-locked", float(bench.is_trial or arena.is_pinned()), "want 1"
    target = torch.empty_like(arena, device=bench.device)
    sources = {"registered": arena, "pinned": accelerator.pinned(size),
               "pageable": torch.zeros(size, dtype=torch.uint8)}  # fmt: skip
    for name, source in sources.items():
        rates = []
        for _ in range(5):
            bench.wait()
            start = time.perf_counter()
            for _ in range(5):
                target.copy_(source, non_blocking=True)
            issued = time.perf_counter() - start
            bench.wait()
            rates.append(5 * size / (time.perf_counter() - start) / 1e9)
        yield f"{name}: GB/s", sorted(rates)[2], ""
        yield f"{name}: us to issue", issued / 5 * 1e6, ""
    del arena, mapped
    for engine, workers in (("threads", 8), ("processes", bench.scale.workers)):
        with bench.prepared(engine=engine, num_workers=min(workers, bench.scale.workers)) as loader:
            queue = bench.queue(loader)
            list(islice(queue, 8))
            begun, size_bytes = queue.copy_s, 0
            for batch in queue:
                size_bytes += sum(v.nbytes for v in batch.values() if isinstance(v, torch.Tensor))
            bench.wait()
            rate = size_bytes / max(queue.copy_s - begun, 1e-9) / 1e9
        yield f"queue, {engine}: GB/s while copying", rate, ""


def check_cores(bench: Bench) -> Iterator[Row]:
    """Images per second that arrive, and the cores of this process and of its workers."""
    for data in ("files", "tiled"):
        for pin in ("auto", "false"):
            with bench.configured(data, f"loader.pin_memory={pin}") as loader:
                queue = bench.queue(loader)
                batches = forever(queue)
                list(islice(batches, 3 * bench.scale.workers))
                bench.wait()
                others = [pid for pid in members() if pid != os.getpid()]
                start, own, workers = time.perf_counter(), time.process_time(), processor_s(others)
                images = 0
                while time.perf_counter() - start < bench.scale.seconds:
                    images += len(next(batches)["label"])
                bench.wait()
                seconds = time.perf_counter() - start
                name = f"{data}, pin_memory={pin}"
                yield f"{name}: images/s", images / seconds, ""
                yield f"{name}: cores here", (time.process_time() - own) / seconds, "want < 0.5"
                yield f"{name}: cores of workers", (processor_s(others) - workers) / seconds, ""


def check_training(bench: Bench) -> Iterator[Row]:
    """Training fed by arrays and files, beside a batch that stays on the device."""
    networks: dict[str, Callable[[], nn.Module]] = {
        "ResNet-50": lambda: resnet(bench.scale.blocks, width=bench.scale.width),
        "light": light,
    }
    for name, make in networks.items():
        training = Training(bench, make())
        with bench.prepared() as loader:
            queue = bench.queue(loader, [Normalize()])
            resident = next(iter(queue))
            rate, _, cores = training.rate([resident])
            yield f"{name}, resident: images/s", rate, ""
            yield f"{name}, resident: cores here", cores, ""
            yield from _fed(f"{name}, arrays", training, queue)
        for data in ("files", "tiled"):
            with bench.configured(data) as loader:
                queue = bench.queue(loader, [Normalize()])
                yield from _fed(f"{name}, {data}", training, queue)


def _fed(name: str, training: Training, queue: DeviceQueue) -> Iterator[Row]:
    rate, waits, cores = training.rate(queue)
    yield f"{name}: images/s", rate, ""
    yield f"{name}: waits for data", waits, ""
    yield f"{name}: cores here", cores, ""


def check_overlap(bench: Bench) -> Iterator[Row]:
    """The share of copying under which kernels run."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if not bench.is_trial:
        activities.append(ProfilerActivity.CUDA)
    training = Training(bench, resnet(bench.scale.blocks, width=bench.scale.width))
    with bench.prepared() as loader:
        batches = forever(bench.queue(loader, [Normalize()]))
        for batch in islice(batches, 5):
            training.step(batch)
        with profile(activities=activities) as profiler:
            for batch in islice(batches, 10):
                training.step(batch)
            bench.wait()
    path = bench.out / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    share = overlap_share(events)
    yield "copying that lies under computing", -1.0 if share is None else share, "want > 0.9"
    yield "copies to the device per step", len(copies) / 10, ""


def check_memory(bench: Bench) -> Iterator[Row]:
    """Device memory that batches take when each step is one long kernel."""
    if bench.is_trial:
        return
    with bench.prepared() as loader:
        queue = bench.queue(loader)
        batch_bytes = next(iter(queue))["image"].nbytes
        bench.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for batch in islice(forever(queue), 100):
            bench.sleep(bench.scale.cycles // 5)
            del batch
        bench.wait()
        ahead = (torch.cuda.max_memory_allocated() - before) / batch_bytes
    yield "batches on the device at most", ahead, "want < 6"


def check_waits(bench: Bench) -> Iterator[Row]:
    """Synchronisations in a step of `fit`, by the difference of two lengths of a job."""
    from penstock import compose, fit

    jobs = {
        "bf16, clip": ["trainer.amp=bf16", "trainer.clip_norm=1"],
        "fp16": ["trainer.amp=fp16"],
        "bf16, augment=device": ["trainer.amp=bf16", "augment=device"],
        "bf16, accumulate": ["trainer.amp=bf16", "trainer.accumulate=2"],
    }
    for name, more in islice(jobs.items(), 1 if bench.is_trial else None):
        counts, places = [], set()
        for steps in (1, 2) if bench.is_trial else (10, 30):
            overrides = bench.overrides(
                "files", "loader.batch_size=8", "loader.num_workers=2", "logger=null",
                f"trainer.max_steps={steps}", "trainer.log_every=1000", f"outputs={bench.out}/fit",
                "trainer.validate_every=0", f"trainer.device={bench.device.type}", *more,
            )  # fmt: skip
            if bench.is_trial:
                overrides.append("trainer.amp=off")
            with (
                warnings.catch_warnings(record=True) as caught,
                syncs_warn(bench),
                redirect_stdout(io.StringIO()),
            ):
                warnings.simplefilter("always")
                fit(compose(overrides))
            found = [w for w in caught if "synchroniz" in str(w.message)]
            counts.append(len(found))
            places |= {f"{Path(w.filename).name}:{w.lineno}" for w in found}
        at = ", ".join(sorted(places)[:12])
        yield f"{name}: synchronisations a step", (counts[1] - counts[0]) / 20, at


@contextmanager
def syncs_warn(bench: Bench) -> Iterator[None]:
    """Let torch warn of every synchronisation."""
    if bench.is_trial:
        yield
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_losses(bench: Bench) -> Iterator[Row]:
    """Synchronisations in the losses of tasks whose data has lists, with made-up outputs."""
    from penstock.pipeline.tasks.detection import Detection

    task, where = Detection(num_classes=5), {"device": bench.device}
    points = torch.rand(400, 2, **where) * 64
    corners = torch.rand(4, 400, 2, **where) * 32
    outputs = {
        "logits": torch.randn(4, 400, 5, **where, requires_grad=True),
        "boxes": torch.cat([corners, corners + 8], -1),
        "points": points,
        "stride": torch.full((), 8.0, **where),
    }
    boxes = [torch.tensor([[4.0, 4, 40, 40], [9, 9, 30, 20]], **where)] * 4
    labels = [torch.tensor([1, 3], **where)] * 4
    batch = {
        "boxes": boxes,
        "box_labels": labels,
        "valid": torch.ones(4, dtype=torch.bool, **where),
    }
    sum(task.losses(outputs, batch).values()).backward()
    with warnings.catch_warnings(record=True) as caught, syncs_warn(bench):
        warnings.simplefilter("always")
        sum(task.losses(outputs, batch).values()).backward()
    found = [w for w in caught if "synchroniz" in str(w.message)]
    at = ", ".join(sorted({f"{Path(w.filename).name}:{w.lineno}" for w in found}))
    yield "detection: synchronisations of losses", len(found), at


def check_precisions(bench: Bench) -> Iterator[Row]:
    """Steps of the device in both precisions: their own precision is not the step's."""
    for name, amp in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        training = Training(bench, light(), torch.bfloat16 if bench.is_trial else amp)
        seen = set()
        with bench.prepared() as loader, torch.autocast(bench.device.type, dtype=training.amp):
            for batch in islice(bench.queue(loader, [Normalize()]), 10):
                seen.add(batch["image"].dtype)
                training.step(batch)
        yield f"{name}: steps of the device in float32", float(seen == {torch.float32}), "want 1"
        yield f"{name}: loss is finite", float(training.loss.isfinite()), "want 1"


def check_ranks(bench: Bench) -> Iterator[Row]:
    """A step with gradients that are averaged by NCCL, in a world of one."""
    import torch.distributed as dist

    backend = "gloo" if bench.is_trial else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        losses = []
        for wrapped in (False, True):
            torch.manual_seed(0)
            training = Training(bench, light())
            if wrapped:
                training.model = nn.parallel.DistributedDataParallel(training.model)
            with bench.prepared(batch_size=min(64, bench.scale.batch_size)) as loader:
                for batch in islice(bench.queue(loader, [Normalize()]), 10):
                    training.step(batch)
            losses.append(float(training.loss.detach()))
        yield "loss with and without DDP: difference", abs(losses[0] - losses[1]), "want < 0.05"
    finally:
        dist.destroy_process_group()


def check_resuming(bench: Bench) -> Iterator[Row]:
    """A run that is killed twice, beside one that is not: weights to the bit."""
    steps, kills = (3, 1) if bench.is_trial else (60, 2)
    job = bench.overrides(
        "files", "loader.batch_size=16", "loader.num_workers=2", f"trainer.max_steps={steps}",
        f"trainer.max_epochs={steps}", "trainer.checkpoint_every=10", "trainer.validate_every=0",
        f"trainer.device={bench.device.type}",
    )  # fmt: skip
    job += [] if bench.is_trial else ["trainer.amp=bf16"]
    weights = []
    for name, turns in (("straight", 0), ("killed", kills)):
        outputs = bench.out / name
        shutil.rmtree(outputs, ignore_errors=True)
        command = command_of("train", *job, f"outputs={outputs}", "trainer.resume=auto")
        for _ in range(turns):
            _kill_after_a_checkpoint(command, outputs)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
        [last] = outputs.rglob("last.pt")
        weights.append(torch.load(last, map_location="cpu", weights_only=False)["model"])
    one, other = weights
    differ = sum(not torch.equal(one[key], other[key]) for key in one)
    yield "tensors of the model", len(one), ""
    yield "tensors that differ", differ, "want 0"


def _kill_after_a_checkpoint(command: list[str], outputs: Path) -> None:
    """Start a run, and kill it and its workers after its next checkpoint."""
    before = {path.stat().st_mtime_ns for path in outputs.rglob("last.pt")}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(FileNotFoundError):
            if {path.stat().st_mtime_ns for path in outputs.rglob("last.pt")} - before:
                break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SECTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "exactness": check_exactness,
    "transfer": check_transfer,
    "memory": check_memory,
    "cores": check_cores,
    "training": check_training,
    "overlap": check_overlap,
    "precisions": check_precisions,
    "ranks": check_ranks,
    "losses": check_losses,
    "waits": check_waits,
    "resuming": check_resuming,
}


def main() -> int:
    """Measure section after section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--minutes", type=float, default=6.0, help="begin no section after them")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--cpu", action="store_true", help="very small, without a GPU")
    arguments = parser.parse_args()
    if not arguments.cpu and not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device; --cpu tries it without", file=sys.stderr)
        return 2
    scale = TINY if arguments.cpu else Scale(workers=min(16, len(os.sched_getaffinity(0))))
    if arguments.workers:
        scale = replace(scale, workers=arguments.workers)
    device = torch.device("cpu") if arguments.cpu else torch.device("cuda", 0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    torch.backends.cudnn.benchmark = True
    name = "no GPU: a trial run" if arguments.cpu else torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0))
    print(f"{name}, {cores} cores, torch {torch.__version__}, batch {scale.batch_size}")
    results: dict[str, Any] = {"device": name, "cores": cores, "torch": torch.__version__}
    start, failures = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        bench = Bench(scale, device, Path(folder), arguments.out.resolve())
        for section in arguments.only.split(","):
            if time.monotonic() - start > arguments.minutes * 60:
                print(f"{section}: left out, {arguments.minutes:g} minutes are over")
                continue
            failures += measure(section, bench, results)
            (arguments.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {arguments.out / 'results.json'}")
    return 1 if failures else 0


def measure(section: str, bench: Bench, results: dict[str, Any]) -> bool:
    """Run a section, print its rows, and return whether it failed."""
    start = time.monotonic()
    rows: dict[str, Any] = {}
    results[section] = rows
    failed = False
    try:
        for name, value, note in SECTIONS[section](bench):
            rows[name] = value
            print(f"  {section:<11} {name:<52} {value:>12,.3f}  {note}", flush=True)
    except Exception as error:
        failed = True
        rows["error"] = traceback.format_exception_only(error)[-1].strip()
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"  {section:<11} FAILED {rows['error']} ({place.filename}:{place.lineno})", flush=True
        )
    rows["seconds"] = time.monotonic() - start
    print(f"  {section:<11} took {rows['seconds']:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

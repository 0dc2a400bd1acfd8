"""Runs whose folder is at a URL: whole there, and gone on with on any machine."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from penstock.core.user_errors import ExplainedError
from penstock.datasets.files import clients
from penstock.pipeline.training import job, run_copy
from penstock.pipeline.training.run_folder import Outputs
from tests.moto_bucket import moto_bucket
from tests.object_store import BUCKET
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import assert_equal_weights, start, the_folder, weights
from tests.tcp_proxy import TcpProxy

URL = f"s3://{BUCKET}/runs"
MARK = ".running"

pytestmark = pytest.mark.usefixtures("tiny_parts")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(store, monkeypatch):
    for name, value in {"LOOK": 0.01, "AGAIN": 0.05, "BEAT": 0.1}.items():
        monkeypatch.setattr(run_copy, f"_{name}_S", value)
    return store


def runs_of(store):
    return sorted(
        {key.rpartition("/config.yaml")[0] for key in store.files if "config.yaml" in key}
    )


def files_of(store, run):
    return {key[len(run) + 1 :]: store.files[key] for key in store.files if key.startswith(run)}


def saved(store, run, name="last.pt"):
    return torch.load(io.BytesIO(store.files[f"{run}/checkpoints/{name}"]), weights_only=True)


def at_url(trainer=(), **tiny):
    return config_of(Path("unused"), trainer, **tiny) | {"outputs": URL}


def test_a_run_is_whole_at_its_url_and_nothing_of_it_is_left_here(store, cache, tmp_path, capsys):
    straight = Path(job.train(config_of(tmp_path / "here"))["run_dir"])
    capsys.readouterr()
    results = job.train(at_url())
    [run] = runs_of(store)
    assert results["run_dir"] == f"s3://{BUCKET}/{run}"
    assert re.search(rf"^run +s3://{BUCKET}/{run}$", capsys.readouterr().out, re.MULTILINE)
    there = files_of(store, run)
    here = {p.relative_to(straight).as_posix() for p in straight.rglob("*") if p.is_file()}
    assert set(there) == here - {".lock", "checkpoints/previous.pt"}
    assert there["metrics.csv"] == (straight / "metrics.csv").read_bytes()
    assert json.loads(there["summary.json"])["epoch"] == 3
    assert_equal_weights(saved(store, run)["model"], weights(straight))
    assert not [*cache.glob("penstock/runs/*")]
    assert b"secret-of-the-user" not in b"".join(there.values())


class Stops(job.Interrupt):
    def __enter__(self):
        super().__enter__()
        self.requested = True
        return self


def test_stopped_after_every_step_it_goes_on_exactly_on_another_machine(
    store, cache, tmp_path, monkeypatch
):
    trainer = {"max_epochs": 2, "resume": "auto"}
    straight = Path(job.train(config_of(tmp_path / "straight", trainer))["run_dir"])
    with monkeypatch.context() as patch:
        patch.setattr(job, "Interrupt", Stops)
        for _ in range(4):
            with pytest.raises(SystemExit):
                job.train(at_url(trainer))
            shutil.rmtree(cache)
    job.train(at_url(trainer))
    [run] = runs_of(store)
    assert_equal_weights(saved(store, run)["model"], weights(straight))
    assert files_of(store, run)["metrics.csv"] == (straight / "metrics.csv").read_bytes()


def test_a_store_that_fails_for_a_while_holds_nothing_up(store, cache, tmp_path, capsys):
    straight = Path(job.train(config_of(tmp_path / "here"))["run_dir"])
    troubled = {}

    def now_and_then(method, key):
        """Each request fails twice, by its answer or on the way; then for a while all do."""
        troubled[method, key] = count = troubled.get((method, key), 0) + 1
        return (503, "cut")[count % 2] if count < 3 and not key.endswith(MARK) else None

    store.fault = now_and_then
    job.train(at_url())
    [run] = runs_of(store)
    assert_equal_weights(saved(store, run)["model"], weights(straight))


def test_a_store_that_stays_away_ends_the_run_in_a_line_and_nothing_is_lost(
    store, cache, tmp_path, monkeypatch, capsys
):
    straight = Path(job.train(config_of(tmp_path / "here"))["run_dir"])
    store.fault = lambda method, key: 403 if method == "PUT" and key.endswith(".pt") else None
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(run_copy, "_PATIENCE_S", 0.3)
        with pytest.raises(ExplainedError, match="access is denied") as error:
            job.train(at_url())
    assert "nothing is copied for now, and it is tried again" in capsys.readouterr().out
    [run] = runs_of(store)
    folder = re.search(r"it lies in (\S+), and on this machine trainer", str(error.value))[1]
    assert f"trainer.resume=s3://{BUCKET}/{run} copies it and goes on" in str(error.value)
    assert_equal_weights(weights(Path(folder)), weights(straight))
    assert "secret-of-the-user" not in str(error.value)
    store.fault = lambda method, key: None
    job.train(at_url({"resume": "auto"}))
    assert runs_of(store) == [run] and not [*cache.glob("penstock/runs/*")]
    assert_equal_weights(saved(store, run)["model"], weights(straight))


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [True, False])
def test_killed_in_the_middle_of_a_copy_it_goes_on_exactly(
    store, cache, tmp_path, monkeypatch, elsewhere
):
    monkeypatch.setattr(run_copy, "_SILENT_S", 0.5)
    trainer = {"max_epochs": 4, "resume": "auto", "checkpoint_every": 3}
    straight = Path(job.train(config_of(tmp_path / "straight", trainer))["run_dir"])
    copies = []

    def stalls(method, key):
        if method == "PUT" and key.endswith("last.pt"):
            copies.append(key)
            return "stall" if len(copies) > 1 else None
        return None

    store.fault = stalls
    process = start(at_url(trainer, sleep_s=0.1), environment=os.environ)
    while len(copies) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    store.fault = lambda method, key: None
    [run] = runs_of(store)
    steps = saved(store, run)["state"]["step"]
    assert 0 < steps < 24
    if elsewhere:
        shutil.rmtree(cache)
    job.train(at_url(trainer, sleep_s=0.1))
    assert runs_of(store) == [run]
    assert_equal_weights(saved(store, run)["model"], weights(straight))
    assert files_of(store, run)["metrics.csv"] == (straight / "metrics.csv").read_bytes()


def test_who_is_taken_over_ends_and_writes_nothing_more(store, cache, tmp_path):
    """A machine that was cut off for a while finds that another goes on with its run."""

    def take(method, key):
        if method == "PUT" and key.endswith("last.pt"):
            mark = next(key for key in store.files if key.endswith(MARK))
            store.files[mark] = json.dumps({"owner": "another", "time": time.time()}).encode()
        return None

    store.fault = take
    with pytest.raises(ExplainedError, match="another process has gone on with this run") as error:
        job.train(at_url({"max_epochs": 40}, sleep_s=0.05))
    [run] = runs_of(store)
    there = files_of(store, run)
    assert json.loads(there[MARK])["owner"] == "another" and "summary.json" not in there
    folder = Path(re.search(r"what it has lies in (\S+)", str(error.value))[1])
    assert weights(folder).keys() == saved(store, run)["model"].keys()


def test_a_run_that_is_being_trained_is_left_alone(store, cache, tmp_path, capsys):
    running = Outputs.at(URL, telling=False).make()
    running.write_config(at_url() | {"trainer": {**at_url()["trainer"], "resume": "auto"}})
    while not runs_of(store):
        time.sleep(0.01)
    shutil.rmtree(cache / "penstock" / "runs")  # as if it were another machine
    with pytest.raises(ValueError, match=f"another process is training in {running}; stop it"):
        job.train(at_url({"resume": str(running)}))
    capsys.readouterr()
    results = job.train(at_url({"resume": "auto"}))
    running.release()
    assert results["run_dir"] != str(running)
    assert f"another process is training in {running}" in capsys.readouterr().out


def test_a_new_run_takes_no_place_where_something_is(store, cache):
    made = [Outputs.at(URL, telling=False).make() for _ in range(3)]
    assert len({str(each) for each in made}) == 3
    assert len([key for key in store.files if key.endswith(MARK)]) == 3
    for each in made:
        each.release()
    assert not store.files, "no run has begun"


def test_a_checkpoint_that_cannot_be_had_is_one_clear_line(store, cache, tmp_path, monkeypatch):
    run = Path(job.train(config_of(tmp_path / "here"))["run_dir"])
    (run / "checkpoints" / "previous.pt").unlink()
    url = store.put(run, "runs/mine")
    last = store.files["runs/mine/checkpoints/last.pt"]

    def refused(resume, match):
        with pytest.raises((ValueError, ExplainedError), match=match):
            job.train(at_url({"resume": resume}))

    refused(f"s3://{BUCKET}/runs/yours", "runs/yours does not exist, or is no run's")
    refused(f"{url}/checkpoints/best-of-all.pt", "best-of-all.pt does not exist")
    refused("s3://bukkit/runs/mine", "there is no such bucket")
    refused(f"s3://me:secret@{BUCKET}/runs", "carries a password")
    store.files["runs/mine/checkpoints/last.pt"] = last[: len(last) // 2]
    refused(url, f"{url}/checkpoints/last.pt is cut short or damaged.*start anew")
    flipped = bytearray(last)
    flipped[len(last) // 2] ^= 1
    store.files["runs/mine/checkpoints/last.pt"] = bytes(flipped)
    refused(f"{url}/checkpoints/last.pt", f"{url}/checkpoints/last.pt is damaged")
    store.fault = lambda method, key: 403 if key.endswith(".pt") else None
    refused(url, "last.pt: access is denied")
    assert MARK not in files_of(store, "runs/mine")


def test_a_checkpoint_of_a_web_server_goes_on_in_a_new_run(store, cache, tmp_path):
    run = Path(job.train(config_of(tmp_path / "here", {"max_epochs": 2}))["run_dir"])
    store.put(run, "runs/mine")
    before = dict(store.files)
    url = f"{store.url}/{BUCKET}/runs/mine/checkpoints/last.pt"
    results = job.train(config_of(tmp_path / "there", {"max_epochs": 3, "resume": url}))
    assert Path(results["run_dir"]).is_relative_to(tmp_path / "there") and results["epoch"] == 3
    assert store.files == before


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_signal_saves_is_copied_before_the_end(store, cache, tmp_path, ranks):
    trainer = {"max_epochs": 2, "resume": "auto", "checkpoint_every": None}
    process = start(config_of(tmp_path, trainer), ranks=ranks)
    assert process.wait(timeout=120) == 0
    straight = the_folder(tmp_path)
    slow = at_url(trainer, sleep_s=0.1)
    process = start(slow, ranks=ranks, environment=os.environ, start_new_session=True)
    while not any(key.endswith("metrics.csv") for key in store.files):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if ranks == 1:
        process.send_signal(signal.SIGTERM)
    else:  # as a terminal does: to everyone, torchrun included
        os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert ranks > 1 or process.returncode == 143, errors
    [run] = runs_of(store)
    assert f"stopped at step {saved(store, run)['state']['step']}; go on with" in output
    assert MARK not in files_of(store, run) and not [*cache.glob("penstock/runs/*")]
    shutil.rmtree(cache)
    process = start(slow, ranks=ranks, environment=os.environ)
    assert process.wait(timeout=120) == 0, process.communicate()
    assert runs_of(store) == [run]
    assert_equal_weights(saved(store, run)["model"], weights(straight))
    assert files_of(store, run)["metrics.csv"] == (straight / "metrics.csv").read_bytes()


@pytest.mark.service
def test_a_line_that_is_cut_again_and_again_to_a_real_server(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(run_copy, "_LOOK_S", 0.05)
    trainer = {"max_epochs": 4, "resume": "auto"}
    straight = Path(job.train(config_of(tmp_path / "straight", trainer))["run_dir"])
    with moto_bucket(monkeypatch, tmp_path) as bucket:
        host, port = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
        proxy = TcpProxy((host, int(port)))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        config = at_url(trainer) | {"outputs": "s3://photographs/runs"}
        ended = threading.Event()

        def cut():
            while not ended.wait(0.2):
                proxy.refuses = not proxy.refuses
                proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            with monkeypatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(job, "Interrupt", Stops)
                job.train(config)
            shutil.rmtree(cache)
            run = job.train(config)["run_dir"]
        finally:
            ended.set()
            cutting.join()
            proxy.close()
        there = {each.key: each.get()["Body"].read() for each in bucket.objects.all()}
        prefix = run.removeprefix("s3://photographs/")
        assert proxy.cuts and not any(key.endswith(MARK) for key in there)
        last = torch.load(io.BytesIO(there[f"{prefix}/checkpoints/last.pt"]), weights_only=True)
        assert_equal_weights(last["model"], weights(straight))
        assert there[f"{prefix}/metrics.csv"] == (straight / "metrics.csv").read_bytes()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        clients._open_client.cache_clear()
        made = [Outputs.at("s3://photographs/runs", telling=False).make() for _ in range(2)]
        assert str(made[0]) != str(made[1])
        with pytest.raises(FileExistsError):  # one of several that come at once gets it
            clients.ask(str(made[0]), lambda client: client.put(MARK, b"", new=True))
        for each in made:
            each.release()

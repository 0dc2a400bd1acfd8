"""The bench where batches are computed by a cluster of Ray, or could be."""

from __future__ import annotations

import sys

import pytest

from penstock.pipeline.commands.bench import BenchSettings
from penstock.pipeline.commands.bench.advice import Bench, Facts, candidates
from penstock.pipeline.commands.bench.points import read_points
from penstock.pipeline.commands.bench.single import cluster_of
from penstock.pipeline.commands.bench.subject import Subject
from penstock.pipeline.loader.settings import LoaderSettings
from tests.cluster import local_cluster

QUICK = ["loader.batch_size=16", "model.width=8"]
HERE = LoaderSettings(engine="threads", num_workers=2)


@pytest.fixture
def cluster():
    with local_cluster() as started:
        yield started


def test_why_there_is_no_cluster_is_told(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    actors, why = cluster_of(HERE)
    assert actors == 0 and "RAY_ADDRESS=auto" in why
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'penstock[ray]'" in cluster_of(HERE)[1]


@pytest.mark.slow
def test_actors_are_what_is_tried(cluster, data_dir, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    assert cluster_of(HERE) == (4, "")
    four = LoaderSettings(engine="ray", num_workers=4, resources={"CPU": 3})
    assert cluster_of(four) == (1, "")
    texts = [*QUICK, f"data_dir={data_dir}", "loader=ray", "loader.num_workers=2"]
    points = read_points(texts, command="bench")
    config = points.points[0].config
    with Subject(config, "train") as present:
        known = Facts(limit="loader", workers=2, decoding=None, engines=(), holds=False,
                      cuda=False, actors=4)  # fmt: skip
        first, *_ = candidates(config, known)
        assert first.typed == "loader.num_workers=4"
        settings = BenchSettings(try_seconds=0.02, rounds=1)
        with Bench(points, present, settings, rows=None, measure=Subject.loader_round) as tries:
            trial = tries.attempt(first)
    assert trial.failed == "" and trial.gain > 0

"""Runs on tables of a server: equal batches after lost connections, and no password anywhere."""

from __future__ import annotations

import traceback

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.files import passwords
from penstock.datasets.storages.sql import SqlStorage
from penstock.pipeline.commands.digest import batch_digest
from penstock.pipeline.config.app import main as run_job
from tests.datasets.storages.sql_servers import running

pytestmark = pytest.mark.service
N = 150
SMALL = ["augment=light", "augment.image_size=20", "loader.batch_size=8", "loader.drop_last=false"]


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request):
    rng = np.random.default_rng(0)
    with running(request.param) as server:
        rows = [
            (i, "abc"[i % 3], cv2.imencode(".png", rng.integers(0, 256, (24, 24, 3), np.uint8))[1])
            for i in range(N)
        ]
        rows = [(i, label, image.tobytes() if i != 17 else b"no image") for i, label, image in rows]
        server.put("CREATE TABLE samples (id INT PRIMARY KEY, label VARCHAR(9), image BLOB)",
                   rows=rows)  # fmt: skip
        yield server


def data(server, url=None):
    url = f"dataset.storage.url={url or server.url}"
    return ["dataset=sql", url, "dataset.storage.table=samples", *SMALL]


def digests(texts, *, meanwhile=None):
    found = []
    with build_loader(compose(texts), "train") as loader:
        for _ in range(2):
            for batch in loader:
                found.append(batch_digest(batch))
                if meanwhile is not None:
                    meanwhile()
    return found


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_connections_that_end_in_the_middle_of_an_epoch_change_nothing(server, engine):
    expected = digests([*data(server), "loader=inline"])
    ended = []
    texts = [*data(server), f"loader.engine={engine}", "loader.num_workers=2"]
    found = digests(texts, meanwhile=lambda: ended.append(server.kill_others()))
    assert found == expected and sum(ended) > 0


def test_a_password_is_in_no_file_and_no_line(server, tmp_path, monkeypatch, capfd, caplog):
    if server.name == "mariadb":
        pytest.skip("this server refuses a wrong password")
    url = server.url.replace("root@", "root:geh%40eim@")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    quick = ["trainer.limit_val_batches=1", "loader.num_workers=2", "trainer.progress=off"]
    assert run_job([*data(server, url=url), *quick, "trainer.max_steps=2"]) == 0
    [run] = (path.parent for path in tmp_path.glob("outputs/*/*/config.yaml"))
    assert "root:***@" in (run / "config.yaml").read_text()
    monkeypatch.setattr(passwords, "_known", {})  # as in another process
    resumed = [f"trainer.resume={run}", "trainer.max_steps=4"]
    assert run_job(resumed) == 2
    assert run_job([*resumed, f"dataset.storage.url={url}"]) == 0
    with pytest.raises(ValueError) as error:
        len(SqlStorage(url, table="smaples"))
    told = [*capfd.readouterr(), caplog.text, "".join(traceback.format_exception(error.value))]
    assert "type the URL again" in told[1]
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(contents) > 5
    for content in (*contents, *(text.encode() for text in told)):
        assert b"geh%40eim" not in content and b"geh@eim" not in content

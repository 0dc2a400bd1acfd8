"""Runs on a server's tables: the same batches however it is run, and no password anywhere."""

from __future__ import annotations

import time
import traceback

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.core.sample import BadRecord
from penstock.datasets.files import passwords
from penstock.datasets.storages.sql import SqlSource, SqlStorage
from penstock.pipeline.config.app import main as run_job
from penstock.pipeline.loader.digest import batch_digest
from tests.datasets.storages.sql_servers import Proxy, running

pytestmark = pytest.mark.service
N = 150
SMALL = ["augment=light", "augment.image_size=20", "loader.batch_size=8", "loader.drop_last=false"]
WAYS = {
    "threads": ["loader.engine=threads", "loader.num_workers=3"],
    "processes": ["loader.engine=processes", "loader.num_workers=2"],
    "torch": ["loader.engine=torch", "loader.num_workers=2"],
}  # fmt: skip


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


def data(server, kind="storage", url=None):
    chosen = ["dataset=sql"] if kind == "storage" else ["dataset=stream", "dataset/source=sql"]
    more = [] if kind == "storage" else [f"dataset.{kind}.shard_rows=20"]
    return [*chosen, *more, f"dataset.{kind}.url={url or server.url}",
            f"dataset.{kind}.table=samples", *SMALL]  # fmt: skip


def digests(texts, *, meanwhile=None):
    found = []
    with build_loader(compose(texts), "train") as loader:
        for _ in range(2):
            for batch in loader:
                found.append(batch_digest(batch))
                if meanwhile is not None:
                    meanwhile()
    return found


@pytest.mark.parametrize("kind", ["storage", "source"])
def test_batches_are_the_same_however_they_are_computed(server, kind):
    expected = digests([*data(server, kind), "loader=inline"])
    assert len(set(expected)) == len(expected) > 20
    for name in WAYS if kind == "storage" else ("threads", "processes"):
        assert digests([*data(server, kind), *WAYS[name]]) == expected, name


@pytest.mark.parametrize("kind", ["storage", "source"])
@pytest.mark.parametrize("way", ["threads", "processes"])
def test_connections_that_end_in_the_middle_of_an_epoch_change_nothing(server, kind, way):
    expected = digests([*data(server, kind), "loader=inline"])
    ended = []
    found = digests([*data(server, kind), *WAYS[way]], meanwhile=lambda: ended.append(
        server.kill_others()))  # fmt: skip
    assert found == expected and sum(ended) > 0


@pytest.mark.parametrize("kind", ["storage", "source"])
def test_it_is_resumed_and_shared_among_ranks(server, kind):
    config = compose([*data(server, kind), "loader=inline"])
    with build_loader(config, "train") as whole:
        batches = list(whole)
    with build_loader(config, "train") as first, build_loader(config, "train") as second:
        begun = [batch_digest(batch) for _, batch in zip(range(4), first, strict=False)]
        second.load_state_dict(first.state_dict())
        rest = [batch_digest(batch) for batch in second]
    assert begun + rest == [batch_digest(batch) for batch in batches]
    keys = []
    for rank in (0, 1):
        with build_loader(config, "train", rank=rank, world_size=2) as loader:
            keys += [key for batch in loader for key, valid in zip(
                batch["key"], batch["valid"].tolist(), strict=True) if valid]  # fmt: skip
    assert sorted(keys) == sorted(key for batch in batches for key in batch["key"])


def test_connections_that_are_cut_by_the_network_change_nothing(server):
    expected = digests([*data(server), "loader=inline"])
    proxy = Proxy(server)
    typed = data(server, url=server.through(proxy.port))
    found = []
    with build_loader(compose([*typed, *WAYS["threads"]]), "train") as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                found.append(batch_digest(batch))
                if number % 4 == 0:
                    proxy.cut()
    proxy.close()
    assert found == expected and proxy.cuts


def test_a_stream_keeps_its_positions_while_the_table_changes(server):
    server.put("CREATE TABLE others (id INT PRIMARY KEY, label VARCHAR(9), a BLOB)",
               "INSERT INTO others SELECT id * 2, label, NULL FROM samples")  # fmt: skip
    source = SqlSource(server.url, table="others", shard_rows=70, types={"a": "array"})
    assert [source.count(shard) for shard in source.shards(0)] == [70, 70, 10]
    server.put("DELETE FROM others WHERE id IN (0, 20, 22, 298)",
               "INSERT INTO others VALUES (7, 'new', NULL), (999, 'new', NULL)",
               "UPDATE others SET label = 'b' WHERE id = 24",
               "UPDATE others SET a = 'no array' WHERE id = 30")  # fmt: skip
    items = [item for shard in source.shards(1) for item in source.read(shard, 0)]
    records = [source.load(item) for item in items]
    assert [record.key for record in records] == [str(i * 2) for i in range(N)]
    bad = {record.key: record.cause[:21] for record in records if isinstance(record, BadRecord)}
    gone = dict.fromkeys(("0", "20", "22", "298"), "its row is gone")
    assert bad == gone | {"24": "column 'label' is 'b'", "30": bad["30"]}
    assert bad["30"].startswith("column 'a' ")


def test_a_larger_record_is_bad_in_a_stream_too(server):
    source = SqlSource(server.url, table="samples")
    source.max_record_bytes = 100
    causes = {getattr(source.load(item), "cause", "")[-45:] for item in source.read((0, 30), 0)}
    assert len(causes) > 1 and "" in causes, "but for the one of 8 bytes"
    assert all("dataset.max_record_bytes=" in cause for cause in causes - {""})


@pytest.fixture(scope="module")
def large(server):
    server.put("CREATE TABLE large (id INT PRIMARY KEY, x BLOB)",
               rows=[(i, b"x" * 500_000) for i in range(200)], table="large")  # fmt: skip


def test_a_stream_that_is_closed_early_leaves_the_rest_unread(server, large):
    proxy = Proxy(server)
    source = SqlSource(server.through(proxy.port), table="large")
    reader = source.read((0, 200), 0)
    assert next(reader).key == "0"
    before = proxy.passed
    reader.close()
    assert proxy.passed - before < 20_000_000
    assert sum(1 for _ in source.read((0, 200), 0)) == 200
    proxy.close()


def test_a_slow_reader_gets_all_rows(server, large):
    if server.name == "postgresql":
        own = server.root.url.database
        server.put(f"ALTER DATABASE {own} SET idle_in_transaction_session_timeout = '100ms'")
    slow = SqlSource(server.url, table="large", timeout_s=1)
    slow.max_record_bytes = 500_000
    for n, item in enumerate(slow.read((0, 200), 0)):
        assert item.key == str(n) and slow.load(item).fields["x"] == b"x" * 500_000
        time.sleep(0.01)
    assert n == 199


def test_a_password_is_in_no_file_and_no_line(server, tmp_path, monkeypatch, capfd, caplog):
    url = server.url.replace("root@", "root:geh%40eim@")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    quick = ["trainer.limit_val_batches=1", "loader.num_workers=2", "trainer.progress=off"]

    def train(*texts):
        return run_job(texts)

    if server.name == "mariadb":  # this server knows that it is not the password
        assert train(*data(server, url=url), *quick) == 1
    else:
        assert train(*data(server, url=url), *quick, "trainer.max_steps=2") == 0
        [run] = (path.parent for path in tmp_path.glob("outputs/*/*/config.yaml"))
        assert "root:***@" in (run / "config.yaml").read_text()
        monkeypatch.setattr(passwords, "_known", {})  # as in another process
        assert train(f"trainer.resume={run}", "trainer.max_steps=4") == 1
        assert train(f"trainer.resume={run}", "trainer.max_steps=4",
                     f"dataset.storage.url={url}") == 0  # fmt: skip
    with pytest.raises(ValueError) as error:
        len(SqlStorage(url, table="smaples"))
    told = [*capfd.readouterr(), caplog.text, "".join(traceback.format_exception(error.value))]
    said = "type the URL again" if server.name == "postgresql" else "Access denied for user 'root'"
    assert said in told[1]
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert server.name == "mariadb" or len(contents) > 5
    for content in (*contents, *(text.encode() for text in told)):
        assert b"geh%40eim" not in content and b"geh@eim" not in content

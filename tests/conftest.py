"""What all tests share: a cache of their own, and the demo set, made once."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.core import registry
from penstock.datasets.files import clients
from penstock.pipeline.config import compose, libraries
from penstock.pipeline.config.options import OwnFolder
from tests.object_store import object_store

# How long an example takes is decided by who else is at work on the machine. Where CI is set,
# hypothesis draws the same examples every time: what fails there was changed, not drawn.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# Many containers forbid to keep bytecode: hundreds of processes would each compile all they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each of several workers has its share of the cores: threads of torch that wait for one another
# would take those of the other workers. It is set before torch is imported, here and in processes.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores Ctrl-C in what it starts in the background, and all that this starts inherits it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a worker whole files, whose data is then made once, until it steals the last ones."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection_finish() -> None:
    """Let no collection walk through thousands of tests: here it takes 0.5 s, in each fork too."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all processes of this run, where pytest-xdist has started several."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, shared: Path):
    """Keep the caches of tests out of the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("MPLCONFIGDIR", str(shared / "matplotlib"))
        yield


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """Forget the modules that a test wrote and imported: the next test may use their names."""
    monkeypatch.setattr(libraries, "_own_modules", set(libraries._own_modules))
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session", autouse=True)
def composed_once():
    """Compose the same options once in a process: Hydra needs 0.1 s for it."""
    compose_texts, known = compose.compose_texts, {}

    def compose_once(texts):
        key = *texts, OwnFolder.folder, *registry.components()
        if OwnFolder.folder is not None or key not in known:
            known[key] = pickle.dumps(compose_texts(texts))
        return pickle.loads(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose_texts", compose_once)
        yield


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An object store that is asked again at once, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(clients, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(clients, "_retry_s", 1.0)
    monkeypatch.setattr("penstock.datasets.records.splits.set_retry_s", lambda retry_s: None)
    with object_store(monkeypatch.setenv) as store:
        yield store


@pytest.fixture(scope="session")
def data_dir(shared: Path) -> Path:
    """A folder that holds the generated demo set."""
    from penstock.datasets.demo.shapes import demo_path

    folder = shared / "data"
    demo_path("image_folder", folder)  # processes that ask at the same time wait for one of them
    return folder

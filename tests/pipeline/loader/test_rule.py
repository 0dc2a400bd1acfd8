"""The rule that picks an engine where the settings name none."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.loader.worker_errors import describe_death
from tests.contracts.engine import check_engine
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader


class Drawing(FakeDataset):
    global_random = True


class Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def chosen(dataset, **settings):
    with make_loader(dataset, **{"engine": None, "num_workers": 2, **settings}) as loader:
        return loader.engine_choice


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batches_are_those_of_the_inline_engine(num_workers):
    check_engine(None, num_workers=num_workers)


@pytest.mark.parametrize(
    ("dataset", "settings", "who"),
    [
        (FakeDataset(40), {"num_workers": 0}, "the consumer's own thread"),
        (FakeDataset(40), {}, "2 processes of 1 thread each"),
        (FakeDataset(40), {"processes": 0}, "2 threads of this process"),
        (FakeDataset(40), {"processes": 1}, "1 process of 2 threads"),
        (Drawing(40), {"processes": 1}, "2 processes of 1 thread each"),
        (Locked(40), {}, "2 threads of this process"),
        (Locked(40), {"multiprocessing_context": "fork"}, "2 processes of 1 thread each"),
    ],
)
def test_samples_come_from_processes_where_these_can_start(dataset, settings, who):
    assert chosen(dataset, **settings).startswith(f"{who} (")


def test_columns_come_from_threads(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((40, 8, 8, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.arange(40))
    data = ["dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0"]
    with build_loader(
        compose([*data, "augment=as_is", "loader.num_workers=2", "loader.batch_size=8"])
    ) as loader:
        assert loader.engine_choice.startswith("2 threads of this process (each batch is made as")


def test_a_program_without_a_guard_gets_threads(monkeypatch, tmp_path):
    ended = type("Ended", (), dict(pid=1, exitcode=1, join=lambda *_, **__: None,
                                   is_alive=lambda _: False))()  # fmt: skip
    for text, guarded in (
        ("import x\nif __name__ == '__main__':\n    x.run()\n", True),
        ("import x\nx.run()\n", False),
        ("if __name__ != '__main__':\n    raise SystemExit\n", True),
        ("not python", False),
    ):
        main = tmp_path / "main.py"
        main.write_text(text)
        monkeypatch.setattr("sys.modules", {**sys.modules,
                            "__main__": type("M", (), {"__file__": str(main)})})  # fmt: skip
        who = "2 processes" if guarded else "2 threads of this process"
        assert chosen(FakeDataset(40)).startswith(who)
        assert ("has no `if __name__" in describe_death([ended])) != guarded
    with pytest.raises(ValueError, match=r"global random states.*cannot start.*type loader=inline"):
        chosen(Drawing(40))


class Defined(FakeDataset):
    pass


def test_what_a_session_defines_is_not_sent_to_processes(monkeypatch):
    session = type("Session", (), {"Defined": Defined})
    monkeypatch.setitem(sys.modules, "__main__", session)
    assert chosen(FakeDataset(40)).startswith("2 processes")
    monkeypatch.setattr(Defined, "__module__", "__main__")
    assert "a component is defined at a prompt" in chosen(Defined(40))


def test_the_training_loader_logs_the_choice_once(caplog):
    with caplog.at_level(logging.INFO):
        settings = {"engine": None, "num_workers": 2, "processes": 0}
        with make_loader(FakeDataset(40), **settings) as loader:
            digests(loader, 2)
            said = [line for line in caplog.messages if "computed by" in line]
            assert said == [f"loader: batches are computed by {loader.engine_choice}"]


def test_the_engine_that_is_gone_names_the_rule():
    with pytest.raises(ValueError, match="type loader=default"):
        LoaderSettings(engine="auto")
    with pytest.raises(ValueError, match="type loader=default"):
        compose(["loader=auto"])

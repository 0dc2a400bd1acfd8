"""``doctor equal=true`` proves the laws on a user's configuration, or says what breaks them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core import registry
from penstock.pipeline.commands import main
from penstock.pipeline.config.discovery import load_builtin
from penstock.pipeline.loader.engines.inline import InlineEngine
from tests.laws.runs import AUGMENTS, overrides

WAYS = 12
QUICK = ["doctor.batches=3", "loader.multiprocessing_context=fork"]


def doctor(given: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["doctor", "equal=true", *given, *QUICK])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        {"collate": "pad", "augment": "ragged", "dataset": "eager", "sampler": "weighted"},
        pytest.param({"sampler": "without", "augment": "strong"}, marks=pytest.mark.slow),
        pytest.param({"dataset": "torch", "collate": "list"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_equal(content, photos, packed, capsys):
    code, output = doctor(overrides(photos, packed, **content), capsys)
    assert code == 0, output
    assert output.count(" equal ") == WAYS
    assert "all are equal" in output


@pytest.mark.slow
def test_a_stream(photos, capsys):
    data = ["imports=[tests.laws.components]", "dataset=torch", "sampler=sequential"]
    data += ["dataset.target=tests.laws.components.PhotoStream", *AUGMENTS["strong"]]
    data += [f"dataset.args={{root: {photos}/train}}", "loader.batch_size=6"]
    code, output = doctor([*data, "dataset.val_fraction=0"], capsys)
    assert (code, output.count(" equal ")) == (0, WAYS), output


@pytest.mark.parametrize(
    "name", ["laws_counting", pytest.param("laws_undeclared_noise", marks=pytest.mark.slow)]
)
def test_an_impure_component_is_found_out(name, photos, capsys):
    step = f"augment.train.impure={{_target_: transform/{name}}}"
    code, output = doctor([*overrides(photos), step], capsys)
    assert code == 1, output
    assert " of 3 batches differ" in output
    assert "all are equal" not in output
    assert f"augment.train.impure (transform/{name}, " in output and "components.py" in output
    assert "draws from a global random state or keeps state" in output


@pytest.mark.slow
def test_an_engine_of_ones_own_is_compared(photos, capsys, monkeypatch):
    load_builtin()
    monkeypatch.setattr(registry, "_components", dict(registry._components))

    class Dark(InlineEngine):
        def run(self, tasks):
            for delivery in super().run(tasks):
                dark = {**delivery.batch, "image": delivery.batch["image"] * 0}
                yield replace(delivery, batch=dark)

    registry.register("engine", "dark")(Dark)
    code, output = doctor([*overrides(photos), "loader.engine=dark"], capsys)
    assert code == 1 and "3 of 3 batches differ" in output
    assert output.count(" equal ") == WAYS, "all others are"


def test_no_batches_are_no_proof(photos, capsys):
    code = main(["doctor", "equal=true", *overrides(photos), "loader.drop_last=true",
                 "loader.batch_size=50"])  # fmt: skip
    assert code != 0
    assert "0 batches" in capsys.readouterr().err

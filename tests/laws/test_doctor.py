"""``doctor equal=true`` proves the laws on a user's config, or names the step that breaks them."""

from __future__ import annotations

import pytest

from tests.console import penstock
from tests.laws.runs import AUGMENTS, WITH_TORCH, overrides

WAYS = 11
QUICK = ["doctor.batches=3"]


def doctor(given: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = penstock("doctor", "equal=true", *given, *QUICK)
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
    data = [WITH_TORCH, "dataset=torch", "sampler=sequential"]
    data += ["dataset.target=tests.laws.torch_components.PhotoStream", *AUGMENTS["strong"]]
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
def test_an_engine_of_ones_own_is_compared(photos, capsys):
    dark = ["imports=[tests.laws.components,tests.laws.dark_engine]", "loader.engine=laws_dark"]
    code, output = doctor([*overrides(photos), *dark], capsys)
    assert code == 1 and "3 of 3 batches differ" in output
    assert output.count(" equal ") == WAYS, "all other engines are"


def test_no_batches_are_no_proof(photos, capsys):
    none = ["loader.drop_last=true", "loader.batch_size=50"]
    code = penstock("doctor", "equal=true", *overrides(photos), *none)
    assert code != 0
    assert "0 batches" in capsys.readouterr().err

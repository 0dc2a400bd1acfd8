"""What a program has imported when it begins: nothing that not every use of it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.commands import COMMANDS
from tests.heavy_modules import HEAVY

ROOT = Path(__file__).resolve().parents[1]


def test_configuration_imports_nothing_heavy():
    code = (
        "import sys; from pipeline.config.discovery import load_builtin; load_builtin();"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        ([f"pipeline.commands.{name}" for name in COMMANDS], set()),
        (["pipeline.training.job"], {"torch"}),
    ],
    ids=["commands", "training"],
)
def test_a_program_imports_what_every_use_of_it_needs_and_no_more(names, needed):
    slow = {*HEAVY, "torch._dynamo", "kornia", "pandas", "scipy", "sympy", "tensorboard", "PIL"}
    code = (
        f"import sys; import {', '.join(names)};"
        f"print(*sorted(name for name in {sorted(slow)!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == needed


def test_names_of_the_other_datasets_package_are_explained():
    import datasets

    with pytest.raises(ImportError, match="Penstock's own package"):
        from datasets import load_dataset  # noqa: F401
    with pytest.raises(AttributeError):
        _ = datasets.no_such_name

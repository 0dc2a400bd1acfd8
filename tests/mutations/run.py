"""Break the product on purpose, one mutation at a time, and report which tests notice.

``python tests/mutations/run.py [NAME ...]`` copies the checkout, applies each mutation to the
copy, and runs the tests of laws and contracts that should fail. Tests stop at the first failure.
A mutation that no test notices, or whose code is gone, fails the script.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutations.mutations import MUTATIONS, Mutation  # noqa: E402

TIMEOUT_S = 600
NO_TEST_RAN = (2, 3, 4, 5)  # exit codes of pytest


def copy_of_checkout(folder: Path) -> Path:
    """Copy what git knows, or would: neither data nor caches."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def noticed_by(mutation: Mutation, copy: Path) -> str | None:
    """Return the test that fails under a mutation, None if all of them pass.

    Raises:
        SystemExit: The code of the mutation is gone, or its tests cannot run.
    """
    file = copy / mutation.file
    before = file.read_text()
    if before.count(mutation.old) != 1:
        sys.exit(
            f"{mutation.name}: {mutation.file} has its code {before.count(mutation.old)} times"
        )
    file.write_text(before.replace(mutation.old, mutation.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p",
               "no:xdist", "--tb=no", *mutation.tests]  # fmt: skip
    paths = os.pathsep.join([str(copy / "src"), str(copy)])
    try:
        done = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S} s"
    finally:
        file.write_text(before)
    if done.returncode in NO_TEST_RAN and "ERROR " not in done.stdout:
        sys.exit(f"{mutation.name}: its tests cannot run:\n{done.stdout}{done.stderr}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" - ")[0].split(" ", 1)[1] if failed else None


def main(names: list[str]) -> int:
    """Apply the mutations of these names, or all; return the number that no test noticed."""
    chosen = [each for each in MUTATIONS if not names or each.name in names]
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_checkout(Path(folder))
        for number, mutation in enumerate(chosen, start=1):
            start = time.monotonic()
            test = noticed_by(mutation, copy)
            if test is None:
                unnoticed.append(mutation.name)
            seconds = time.monotonic() - start
            print(
                f"{number:2} {seconds:4.0f} s  {mutation.name}: {test or 'NOT NOTICED'}", flush=True
            )
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} mutations noticed")
    return len(unnoticed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

"""Test that ranks end, and end well, however late the threads of their group are."""

import subprocess
import sys
from pathlib import Path


def test_ranks_end_well_while_threads_of_their_group_wait_for_python():
    command = [sys.executable, str(Path(__file__).with_name("ends_job.py")), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr[-2000:]

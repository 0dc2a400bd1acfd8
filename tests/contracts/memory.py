"""Private memory of a process that reads an index."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

_CODE = """
import pickle, sys
import numpy as np
import psutil
index = pickle.loads(sys.stdin.buffer.read())
def own():
    memory = psutil.Process().memory_full_info()
    return memory.uss
before = own()
rng = np.random.default_rng(0)
for _ in range(1000):
    picks = rng.integers(0, len(index), 100)
    keys, labels = index.keys(picks), index.values("label", picks)
print((own() - before) / 1e6, index.keys(np.array([len(index) - 1]))[0])
"""


def worker_memory(index: Any) -> tuple[float, str]:
    """Return the private memory in MB of a new process that reads an index, and the last key."""
    answer = subprocess.run(
        [sys.executable, "-c", _CODE], input=pickle.dumps(index), capture_output=True, check=True
    )
    megabytes, key = answer.stdout.decode().split()
    return float(megabytes), key

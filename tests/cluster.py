"""A cluster of Ray on this machine, for the tests that need one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SMALL = {"object_store_memory": 200 << 20, "include_dashboard": False}
_SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",
    "RAY_preload_python_modules": "penstock.pipeline.loader.executors.ray,torch,cv2",
}


@contextmanager
def local_cluster(num_cpus: int = 4) -> Iterator[Any]:
    """A cluster of one node, which others may be added to; this process is connected to it.

    Ray is imported here and not before: it starts threads in whatever is forked from then on.
    """
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    os.environ |= _SETTINGS
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus, **SMALL})
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name in _SETTINGS:
            del os.environ[name]


@contextmanager
def another_machine(cluster: Any, hidden: Path, *, name: str = "far") -> Iterator[dict[str, float]]:
    """Add a machine with processes and a disk of its own: there it finds a folder empty.

    Args:
        cluster: What `local_cluster` gave.
        hidden: The folder.
        name: A resource that it alone has.

    Yields:
        What an actor takes that is to be there.
    """
    import ray

    start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={cluster.address}"]
    start += ["--num-cpus=2", f'--resources={{"{name}": 2}}', "--block", "--disable-usage-stats"]
    start += [f"--object-store-memory={SMALL['object_store_memory']}"]
    mount = f'hostname {name}; mount -t tmpfs tmpfs "$0" && exec "$@"'
    alone = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    if subprocess.run([*alone, mount, str(hidden), "true"], capture_output=True).returncode:
        pytest.skip("needs to be allowed a mount namespace")
    node = subprocess.Popen(
        [*alone, mount, str(hidden), *start], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: ray.cluster_resources().get(name), what="the machine")
        yield {name: 0.5}
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(150)


def wait_for(done: Callable[[], object], *, what: str, at_most_s: float = 150) -> None:
    """Wait until `done` is."""
    until = time.monotonic() + at_most_s
    while not done():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.1)


def where_penstock_is_missing(folder: Path, code: str) -> str:
    """Run a program whose own cluster has no penstock; what it says.

    Args:
        folder: An empty one.
        code: The program.
    """
    (folder / "penstock.py").write_text("raise ModuleNotFoundError(\"No module named 'penstock'\")")
    hidden = f"import os, penstock\nos.environ['PYTHONPATH'] = {str(folder)!r}\n"
    ended = subprocess.run(
        [sys.executable, "-c", hidden + code], env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    return ended.stderr

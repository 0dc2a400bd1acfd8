"""Signatures of targets: the arguments that a config may give, and their types.

Those of library classes are cached on disk, since importing a library takes longer than everything
else here; a process of its own imports it to find them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core import registry
from penstock.core.files import machine_folder, write_whole
from penstock.pipeline.config.libraries import FAMILIES, Family, family_of, is_own, resolve_target
from penstock.pipeline.config.values import NO_DEFAULT, Argument, annotation_of, reduce

_FORMAT = 4
"""Form of the cache: to be raised when `Signature` changes, or what `reduce` leaves of a type."""


_SECTION = re.compile(r"^(?:Args|Arguments|Attributes):\n((?:[ ].*\n|\n)*)", re.M)
_ENTRY = re.compile(r"^(\w+)(?: *\(.*?\))?:(.*\n(?:[ ].*\n|\n)*)", re.M)


@dataclass(frozen=True, slots=True)
class Signature:
    """Describe what a target takes.

    Attributes:
        target: As a config names it.
        kind: The registry's group, or the family of the allow-list.
        arguments: By name; the injected ones are not among them.
        injected: Arguments that are given at run time.
        takes_any: It takes any keyword.
        takes_positional: It takes any number of positional arguments (``_args_``).
    """

    target: str
    kind: str
    arguments: dict[str, Argument]
    injected: frozenset[str]
    takes_any: bool
    takes_positional: bool


def signature_of(target: str) -> Signature | str:
    """Find the signature of a registered component or of a class on the allow-list.

    Returns:
        The signature, or one line that says why a config may not name this target. A class of
        a library is looked up in a cache on disk, so that the library need not be imported.
    """
    component = registry.find(target)
    if component is not None:
        return _registered(target, component.target)
    family = family_of(target)
    assert family is not None, target
    if is_own(target):
        return _imported(target)
    if not _installed(family.distribution):
        return (
            f"{target!r}: the package {family.distribution} is missing; run: "
            f"pip install {family.distribution}"
        )
    known = _known(family.distribution)
    is_common = target.rpartition(".")[0] == family.name
    if target not in known and not (known and is_common):  # all of these are known
        known.update(_find_out(target, family.distribution))
        # In a home that cannot be written the next process has to ask again, and that is all.
        with contextlib.suppress(OSError):
            write_whole(cache_file(family.distribution), pickle.dumps(known))
    found = known.get(target)
    if is_common and not isinstance(found, Signature) and names_of(family):
        return f"{target!r}: {family.name} has no {family.what} of this name"
    assert found is not None
    return found


def _read(
    target: str, kind: str, call: Callable[..., Any], injected: frozenset[str],
    defaults: dict[str, Any],
) -> Signature:  # fmt: skip
    """Read the signature of what a target calls."""
    said = _documented(call)
    arguments = {
        parameter.name: Argument(
            parameter.name, reduce(annotation_of(call, parameter)), defaults[parameter.name],
            said.get(parameter.name, ""),
        )
        for parameter in registry.parameters(call, injected)
    }  # fmt: skip
    kinds = {parameter.kind for parameter in inspect.signature(call).parameters.values()}
    return Signature(
        target, kind, arguments, injected,
        takes_any=inspect.Parameter.VAR_KEYWORD in kinds,
        takes_positional=inspect.Parameter.VAR_POSITIONAL in kinds,
    )  # fmt: skip


def _documented(call: Callable[..., Any]) -> dict[str, str]:
    """Read what docstrings say of each argument, by name: the sections of Google's style."""
    own = inspect.unwrap(call)  # what takes another's arguments says them by that one's words
    docs = map(inspect.getdoc, (own, getattr(own, "__init__", None), call))
    return {
        name: " ".join(text.split())
        for doc in docs
        for section in _SECTION.findall(f"{doc}\n")
        for name, text in _ENTRY.findall(textwrap.dedent(section))
    }


@cache
def _registered(target: str, call: Callable[..., Any]) -> Signature:
    component = registry.find(target)
    assert component is not None and component.target is call
    injected = registry.GROUPS[component.group].injected
    read = _read(target, component.group, call, injected, registry.option_node(component))
    return replace(read, takes_positional=False)  # of ours, every argument has a name


def asks_for(signature: Signature, name: str) -> bool | None:
    """Tell whether a data set has an argument of this name, also one that a config does not show.

    None of what is no data set.
    """
    component = registry.find(signature.target) if signature.kind == "dataset" else None
    return None if component is None else name in inspect.signature(component.target).parameters


def names_of(family: Family) -> list[str]:
    """List targets of a family that are known already, to find the nearest name."""
    known = _known(family.distribution) if _installed(family.distribution) else {}
    return [
        name for name, found in known.items()
        if name.startswith(f"{family.name}.") and not isinstance(found, str)
    ]  # fmt: skip


def cache_file(distribution: str) -> Path:
    """Name the file that caches the signatures of the installed version."""
    version = importlib.metadata.version(distribution)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    # What may be named decides what was looked at. A set is written in an order that differs
    # from process to process.
    families = [(family.name, family.bases, sorted(family.injected), family.distribution)
                for family in FAMILIES.values()]  # fmt: skip
    allowed = hashlib.sha1(repr((_FORMAT, families)).encode()).hexdigest()[:8]
    return machine_folder("signatures") / f"{distribution}-{version}-py{python}-{allowed}.pickle"


@cache
def _installed(distribution: str) -> bool:
    """Tell whether there is a library at all; some are extras."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version(distribution)
        return True
    return False


@cache
def _known(distribution: str) -> dict[str, Signature | str]:
    """Read what is known of a distribution, at first what the disk has."""
    try:
        return pickle.loads(cache_file(distribution).read_bytes())
    except Exception:  # not there, or damaged, for which pickle has no error of its own
        return {}


def _find_out(target: str, distribution: str) -> dict[str, Signature | str]:
    """Describe a target, and all common ones of its library, in a process of its own."""
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1", "PYTHONPATH": paths}
    call = f"write_signatures({target!r}, {distribution!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import write_signatures; {call}"],
        capture_output=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"looking at {target} failed:\n{done.stderr.decode(errors='replace')}")
    return pickle.loads(done.stdout)


def write_signatures(target: str, distribution: str) -> None:
    """Write to standard output what `_find_out` asks for, pickled."""
    with contextlib.redirect_stdout(sys.stderr):  # a library may print while it is imported
        targets = [target, *_common_targets(distribution)]
        found = pickle.dumps({name: _imported(name) for name in targets})
    sys.stdout.buffer.write(found)


def _imported(target: str) -> Signature | str:
    """Read the signature of a library's class, or why a config may not name it, by importing it."""
    family = family_of(target)
    assert family is not None, target
    try:
        call = resolve_target(target)
    except (ValueError, ImportError) as error:
        return str(error)
    defaults = {
        parameter.name: NO_DEFAULT
        if parameter.default is inspect.Parameter.empty
        else _plain_default(parameter.default)
        for parameter in inspect.signature(call).parameters.values()
    }
    return _read(target, family.name, call, family.injected, defaults)


def _common_targets(distribution: str) -> list[str]:
    """List every public class of the families of a distribution that a config may name."""
    found = []
    for family in FAMILIES.values():
        if family.distribution == distribution:
            module = importlib.import_module(family.name)
            for name in dir(module):
                if name[0] != "_" and inspect.isclass(getattr(module, name)):
                    with contextlib.suppress(ValueError, ImportError):
                        resolve_target(f"{family.name}.{name}")
                        found.append(f"{family.name}.{name}")
    return found


def _plain_default(value: Any) -> Any:
    """Write a library's default as YAML would have it; its repr where YAML has nothing like it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)

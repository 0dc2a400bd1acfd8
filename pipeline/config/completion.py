"""Shell completion: the words that may end the last word of a command line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from penstock.pipeline.config.composition import (
    Composer,
    CompositionError,
    HydraException,
    base_version,
    composer_for,
    setup_globals,
)
from penstock.pipeline.config.errors import ConfigError, Problem
from penstock.pipeline.config.job import read_job
from penstock.pipeline.config.overrides import parse, quote
from penstock.pipeline.config.signatures import Signature, signature_of
from penstock.pipeline.config.values import literals

SHELLS = ("bash", "zsh", "fish")


def complete(arguments: Sequence[str]) -> int:
    """Answer ``-sc install=bash``, ``-sc uninstall=bash`` and ``-sc query=bash``."""
    action, _, shell = (arguments[0] if arguments else "").partition("=")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise ConfigError([Problem("-sc", "accepts install=, uninstall= or query= and a shell: "
                                   f"{', '.join(SHELLS)}; type -sc install=bash")])  # fmt: skip
    if action == "query":
        line = os.environ.get("COMP_LINE", " ".join(arguments[1:]))
        separator = "\n" if shell == "fish" else " "
        print(separator.join(suggestions(line)))
        return 0
    plugin = _plugin(shell, composer_for([]))
    plugin.install() if action == "install" else plugin.uninstall()
    return 0


def suggestions(line: str) -> list[str]:
    """List what the last word of a command line may become.

    Args:
        line: The whole line, with the program's name.
    """
    words = _words(line)
    last = "" if line.endswith(" ") else words.pop() if words else ""
    words = [word for word in words if "=" in word or word.startswith("~")]
    imports = [word for word in words if word.lstrip("+").startswith("imports=")]
    composer = composer_for(imports)
    config = _config(words, composer)
    values = _values(last, config)
    if values is not None:
        return values
    readable = [word for word in words if word not in imports and _fits(word, composer)]
    # Hydra splits the line at spaces, which words with spaces in them would not survive.
    before = [word for word in readable if " " not in word]
    with base_version():
        setup_globals()
        found = _plugin("bash", composer)._query("config", " ".join([*before, last]))
    if "=" not in last:  # with the arguments that stand in no file
        found += _plugin("bash", composer)._get_matches(OmegaConf.create(config), last)
    return sorted({word for word in found if not word.startswith("hydra")})


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is still open
        words = line.split()
    for position, word in enumerate(words):
        if word.endswith(".py"):
            return words[position + 1 :]
    return words[1:]


def _fits(word: str, composer: Composer) -> bool:
    try:
        return not parse([word], composer).problems and quote(word, composer) == word
    except (CompositionError, HydraException):
        return False


def _config(words: list[str], composer: Composer) -> dict[str, Any]:
    """Read the config so far; an empty one while it has mistakes."""
    try:
        return read_job(words, composer).config
    except ConfigError:
        return {}


def _values(last: str, config: dict[str, Any]) -> list[str] | None:
    """List the words that an argument accepts by name: ``loader.on_error=<TAB>``."""
    key, equals, start = last.lstrip("+").partition("=")
    parent, dot, leaf = key.rpartition(".")
    if not equals or not dot:
        return None
    node: Any = config
    for name in parent.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or "_target_" not in node:
        return None
    signature = signature_of(node["_target_"])
    if not isinstance(signature, Signature) or leaf not in signature.arguments:
        return None
    annotation = signature.arguments[leaf].annotation
    names = ["true", "false"] if annotation is bool else literals(annotation)
    return [f"{key}={name}" for name in names if name.startswith(start)] or None


def _plugin(shell: str, composer: Composer) -> Any:
    from hydra._internal.core_plugins.bash_completion import BashCompletion
    from hydra._internal.core_plugins.fish_completion import FishCompletion
    from hydra._internal.core_plugins.zsh_completion import ZshCompletion

    plugins = {"bash": BashCompletion, "zsh": ZshCompletion, "fish": FishCompletion}
    sys.argv[0] = os.path.basename(sys.argv[0])
    return plugins[shell](composer.loader)

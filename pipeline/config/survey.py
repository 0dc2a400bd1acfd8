"""What the classes of a library take, found out by importing it: a process of its own.

``python -m pipeline.config.survey TARGET DISTRIBUTION`` prints it as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from typing import Any

from pipeline.config.allowed import FAMILIES, resolve_target
from pipeline.config.notation import encode, reduce
from pipeline.config.signatures import NO_DEFAULT, annotation_of, plain_default


def _describe_now(target: str) -> dict[str, Any] | str:
    """What a class takes, by importing it."""
    try:
        call = resolve_target(target).call
    except (ValueError, ImportError) as error:
        return str(error)
    arguments = {}
    parameters = inspect.signature(call).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind in named:
            missing = parameter.default is inspect.Parameter.empty
            default = NO_DEFAULT if missing else plain_default(parameter.default)
            arguments[parameter.name] = [encode(reduce(annotation_of(call, parameter))), default]
    kinds = {parameter.kind for parameter in parameters}
    return {
        "arguments": arguments,
        "takes_any": inspect.Parameter.VAR_KEYWORD in kinds,
        "takes_positional": inspect.Parameter.VAR_POSITIONAL in kinds,
    }


def _common_targets(distribution: str) -> list[str]:
    """Every public class of the families of a distribution that a config may name."""
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


if __name__ == "__main__":
    _target, _distribution = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        _targets = [_target, *_common_targets(_distribution)]
        _described = {name: _describe_now(name) for name in _targets}
    print(json.dumps(_described))

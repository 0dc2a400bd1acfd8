"""A config as YAML, whole or in part: what ``--cfg job`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config.errors import ConfigError, Problem, nearest


def print_config(config: Mapping[str, Any], package: str | None = None) -> None:
    """Print a config, or the part of it at `package`, as YAML.

    Raises:
        ConfigError: There is no such part.
    """
    import yaml

    part: Any = config
    for name in package.split(".") if package else ():
        if not isinstance(part, Mapping) or name not in part:
            names = list(part) if isinstance(part, Mapping) else []
            near = nearest(name, names)
            remedy = f"; did you mean {near}?" if near else ""
            raise ConfigError([Problem("--package", f"{package!r} is not in the config{remedy}")])
        part = part[name]
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
    print(text.removesuffix("...\n"), end="")

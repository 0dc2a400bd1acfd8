"""The config from Python and notebooks: `compose`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.errors import ConfigError, Problem

__all__ = ["ConfigError", "compose", "composer_for"]


def compose(
    overrides: Sequence[str] = (), *, config_dir: str | Path | None = None
) -> dict[str, Any]:
    """The config that ``python train.py <overrides>`` would run with.

    It can be called any number of times, also inside of an application of Hydra's own, and
    leaves Hydra's global state alone.

    Args:
        overrides: What one would type: ``["dataset=lmdb", "loader.num_workers=2"]``.
        config_dir: A folder with options of one's own, searched before ``conf/``.

    Returns:
        The plain config: dicts, lists and scalars, resolved and checked.

    Raises:
        ConfigError: A ValueError with a line for every mistake.
    """
    from pipeline.config.job import read_job

    composer = composer_for(overrides, config_dir=Path(config_dir) if config_dir else None)
    return read_job(list(overrides), composer).config


def composer_for(overrides: Sequence[str], *, config_dir: Path | None = None) -> Any:
    """A composer that knows our components and those that the overrides import.

    Raises:
        ConfigError: A module that is to be imported does not exist, or `config_dir` does not.
    """
    from pipeline.config.composition import Composer
    from pipeline.config.discovery import load_all

    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError([Problem("--config-dir", f"no folder {str(config_dir)!r}")])
    load_all()
    composer = Composer(config_dir.resolve() if config_dir is not None else None)
    imports = imports_in(overrides, composer)
    if imports:
        load_all(imports)
        composer = composer.again()
    return composer


def imports_in(overrides: Sequence[str], composer: Any) -> list[str]:
    """What ``imports=[...]`` among the overrides names; the last one counts, as for any key."""
    from pipeline.config.composition import HydraException
    from pipeline.config.quoting import quote

    names: list[str] = []
    for text in overrides:
        if text.lstrip("+").startswith("imports="):
            try:
                value = composer.parse(quote(text, composer)).value()
            except HydraException:
                continue  # reported where all overrides are read
            if isinstance(value, str):
                raise ConfigError([
                    Problem("imports", f"{value!r} given, accepts a list; type imports=[{value}]")
                ])  # fmt: skip
            names = [str(name) for name in value] if isinstance(value, list) else []
    return names

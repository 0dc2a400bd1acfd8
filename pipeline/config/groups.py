"""Which groups there are, and their options."""

from __future__ import annotations


def options_by_group() -> dict[str, list[str]]:
    """Every group of `conf/` and of the registered components, with its options.

    Presets (``experiment``, ``debug``) are among them: their options write to the whole config.
    """
    from pipeline.config.compose import composer_for

    composer = composer_for([])
    return {group: composer.options(group) for group in sorted(composer.groups())}

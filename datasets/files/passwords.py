"""Keep the passwords of URLs out of logs and files.

Configs contain ``scheme://user:***@host``; the process that received the URL restores the password.
"""

from __future__ import annotations

import os
import re
from typing import Any

MASK = "***"
"""Replaces a password."""
_IN_URL = re.compile(
    r"(?<=://)(?P<user>[^\s/:]*:)[^\s/?]+(?=@)|(?P<name>[?&]\w*(?i:passw|passphrase|pwd)\w*=)[^&\s]+"
)
_LEFT_OUT = (f":{MASK}@", f"={MASK}")
_known: dict[str, str] = {}


def masked(text: str) -> str:
    """Mask the passwords of URLs in a text."""
    return _IN_URL.sub(lambda found: f"{found['user'] or found['name']}{MASK}", text)


def hidden(value: Any) -> Any:
    """Mask every text in a config value; `revealed` restores it in this process."""
    if isinstance(value, dict):
        return {key: hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hidden(item) for item in value]
    if not isinstance(value, str) or (text := masked(value)) == value:
        return value
    _known[text] = value
    return text


def revealed(text: str) -> str:
    """Restore a text that `hidden` masked in this process."""
    if text not in _known and any(mark in text for mark in _LEFT_OUT) and masked(text) == text:
        raise ValueError(
            f"{text}: its password was left out; type the URL again, or name a variable: env:NAME"
        )
    return _known.get(text, text)


def from_environment(value: str, *, setting: str) -> str:
    """Return a value, or for ``env:NAME`` the environment variable NAME."""
    name = value.removeprefix("env:")
    if name == value:
        return value
    if name not in os.environ:
        raise ValueError(f"{setting}: the variable {name!r} is not set; type export {name}=...")
    return os.environ[name]

"""Programs as users start them."""

from __future__ import annotations

import sys
from pathlib import Path

PENSTOCK = str(Path(sys.executable).with_name("penstock"))

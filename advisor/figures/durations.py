"""Durations as people write them."""

from __future__ import annotations

import math
import re

from advisor.errors import UsageError


def seconds_of(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1h`` or ``1h30m``. Raises UsageError unless it is a positive duration."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"{number}|(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower(), re.ASCII)
    parts = [float(part) if part else 0.0 for part in match.groups()] if match else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (1, 3600, 60, 1), strict=False))
    if not (0 < total < math.inf):
        raise UsageError(f"{text!r} is not a duration.", "Write a positive one such as 90s, 5m, 1h or 1h30m.")
    return total

"""Whether the app can be shown: on a terminal that can move its cursor."""

from __future__ import annotations

import os
import sys


def shows_the_app() -> bool:
    """Whether standard input and output are a terminal that the app can draw on; a dumb one, as in Emacs, is not."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

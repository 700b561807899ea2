"""Leaving the app for a signal, which may come before the app has begun."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BEGINS_WITHIN_S = 5.0


def leave_from_outside(alive: Callable[[], bool], leave: Callable[[], object]) -> None:
    """Call ``leave`` once the app is alive, in a thread of its own: a signal's handler must not wait."""

    def wait_and_leave() -> None:
        until = time.monotonic() + BEGINS_WITHIN_S
        while not alive() and time.monotonic() < until:
            time.sleep(0.02)
        leave()

    threading.Thread(target=wait_and_leave, name="leave", daemon=True).start()

"""A clock in the place of ``time.monotonic``, which a test sets."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Tells ``now``, in seconds."""

    now: float = 0.0

    def __call__(self):
        return self.now

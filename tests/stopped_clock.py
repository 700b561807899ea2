"""A clock in the place of ``time.monotonic``, which a test sets."""

from dataclasses import dataclass


@dataclass
class Clock:
    """Tells ``now``, in seconds."""

    now: float = 0.0

    def __call__(self):
        return self.now

    def until(self, moment):
        """Let time pass until a moment, which may lie in the past already."""
        self.now = max(self.now, moment)

"""The person's decisions on recipes and requests to a running session, as the session sees them."""

import threading
from enum import StrEnum

# Reasons why a candidate is not tried, or a setting is not in the stack.
REJECTED = "you rejected it"
OTHER_VALUE = "you accepted another value of it"
SKIPPED = "you skipped it"
ENDED = "you ended the session before its turn"
UNCLEAR_TOGETHER = "it is unclear whether the settings are better together: more budget or a quiet machine decides"
RAISE_BUDGET = "raise --budget to try it"  # the end of the reasons that a larger budget takes away


class Decision(StrEnum):
    """The person's answer to a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Steering:
    """The person's requests to a running session, set and read from any thread; ``ending``: measure nothing more."""

    def __init__(self) -> None:
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.ending = False

    @property
    def paused(self) -> bool:
        """Whether the session waits before its next trial."""
        return not self._may_go_on.is_set()

    def pause(self) -> None:
        """Start no further trial until :meth:`go_on`."""
        self._may_go_on.clear()

    def go_on(self) -> None:
        """Start trials again."""
        self._may_go_on.set()

    def end(self) -> None:
        """End the session: no further trial is started."""
        self.ending = True
        self.go_on()

    def restart(self) -> None:
        """Forget earlier requests: the person has asked for more to be measured."""
        self.ending = False
        self.go_on()

    def wait_while_paused(self) -> None:
        """Wait until the session may go on."""
        self._may_go_on.wait()

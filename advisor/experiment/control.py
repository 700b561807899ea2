"""The person's decisions on recipes and requests to a running session, as the session sees them."""

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum

from advisor.records import Value

# Reasons why a candidate is not tried, or a setting is not in the stack.
REJECTED = "you rejected it"
OTHER_VALUE = "you accepted another value of it"
SKIPPED = "you skipped it"
ENDED = "you ended the session before its turn"
# The end of the reasons that a larger budget takes away.
RAISE_BUDGET = "raise --budget to try it"


class Decision(StrEnum):
    """The person's answer to a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Decisions:
    """The person's decisions so far, read and changed from any thread."""

    def __init__(self, known: Mapping[str, Decision] | None = None, values: Mapping[str, Value] | None = None) -> None:
        self._of = dict(known or {})
        self._values = dict(values or {})
        self._lock = threading.Lock()

    def take(self, recipe: str, decision: Decision | None, value: Value | None = None) -> bool:
        """Take a decision on a recipe or one of its values, or take it back (None). Return whether anything changed."""
        with self._lock:
            if (self._of.get(recipe), self._values.get(recipe)) == (decision, value):
                return False
            self._of.pop(recipe, None)  # the latest stands last
            self._values.pop(recipe, None)
            if decision is not None:
                self._of[recipe] = decision
            if value is not None:
                self._values[recipe] = value
            return True

    def all(self) -> dict[str, Decision]:
        """Every decision that stands, the latest last."""
        with self._lock:
            return dict(self._of)

    def values(self) -> dict[str, Value]:
        """The one value that was accepted, of each recipe where it was one."""
        with self._lock:
            return dict(self._values)


class Steering:
    """The person's requests to a running session, set and read from any thread.

    ``ending`` means: measure nothing more, and report what is known.
    """

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

    def begin_anew(self) -> None:
        """Forget earlier requests: the person has asked for more to be measured."""
        self.ending = False
        self.go_on()

    def wait_while_paused(self, tell: Callable[[bool], None]) -> None:
        """Wait until the session may go on, and ``tell`` when that begins and ends."""
        tell(True)
        self._may_go_on.wait()
        tell(False)

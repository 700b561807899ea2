"""A session with real trial processes, for tests: a target on disk, and all that the session posts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from advisor.experiment import events, session
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.experiment.session import Session
from advisor.experiment.state import SessionState
from advisor.machine.hardware import inspect_hardware
from advisor.machine.host import CoresInUse
from advisor.records import TargetSpec
from advisor.runner.trials import Runner

# Seconds that a trial measures: what is planted changes a step many times more than the noise of so few steps.
MEASURE_S = 0.25
_FOREIGN = CoresInUse.foreign  # as it is where no test has put another in its place


@contextmanager
def short_trials(measure_s: float = MEASURE_S) -> Iterator[None]:
    """Every trial measures for a moment only, however long the budget is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("advisor.experiment.measuring.budget._LONGEST_MEASURE_S", measure_s)
        yield


class Run:
    """A session that has been run, or will be, with all that it posted. It has the recipes planted in its folder."""

    def __init__(self, folder, text, *, past=None, runner=None, clock=time.monotonic, device="cpu", **options):
        (folder / "target.py").write_text(text, encoding="utf-8")
        self.told = []
        self.runner = runner or Runner()
        recipes = (str(folder / "recipes"),) if (folder / "recipes").is_dir() else ()
        options = {"budget_s": 15.0, "recipe_folders": recipes, **options}
        self.request = Request(TargetSpec("target.py", str(folder), device=device), **options)
        self.journal = Journal(past.path) if past else Journal.create(self.request)
        self._followers: list[Callable[[events.Event], None]] = []
        self.session = Session(self.request, self.runner, self._tell, self.journal, past=past, clock=clock)

    @property
    def state(self):
        return SessionState.of(self.told)

    def posted(self, kind):
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def started(self):
        """The names of the trials that were asked for, in their order."""
        return [event.name for event in self.posted(events.TrialStarted)]

    @property
    def order(self):
        """The same, each once: a trial that something disturbed is repeated."""
        return list(dict.fromkeys(self.started))

    def when(self, matches, act):
        """Have something done, in the session's own thread, once it posts an event that matches."""
        waiting = [act]

        def follow(event):
            if waiting and matches(event):
                waiting.pop()()

        self._followers.append(follow)

    def run(self):
        """Run it as on a machine that nothing else uses, where a search has one order; a test may make up another."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "inspect_hardware", self._machine)
            if CoresInUse.foreign is _FOREIGN:
                patch.setattr(CoresInUse, "foreign", lambda _: 0.0)
            self.session.run()
        return self

    def _machine(self):
        found = inspect_hardware()
        return replace(found, host=replace(found.host, load=0.0))

    def run_until(self, matches):
        """Run until an event matches, when the rest of the session is of no interest."""
        self.when(matches, self.session.cancel)
        return self.run()

    def _tell(self, event):
        self.told.append(event)
        for follow in self._followers:
            follow(event)

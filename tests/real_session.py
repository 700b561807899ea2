"""A session with real trial processes, for tests: a target on disk, and all that the session posts."""

from __future__ import annotations

from advisor.experiment.journal import Journal
from advisor.experiment.request import Request
from advisor.experiment.session import Session
from advisor.experiment.state import SessionState
from advisor.records import TargetSpec
from advisor.runner import Runner


class Run:
    """A session that has been run, or will be, with all that it posted."""

    def __init__(self, folder, text, *, past=None, **options):
        (folder / "target.py").write_text(text, encoding="utf-8")
        self.told = []
        self.runner = Runner()
        self.request = Request(TargetSpec("target.py", str(folder), device="cpu"), **{"budget_s": 15.0, **options})
        self.journal = Journal(past.path, past.request) if past else Journal.create(self.request)
        self.session = Session(self.request, self.runner, self.told.append, self.journal, past=past)

    @property
    def state(self):
        return SessionState.of(self.told)

    def posted(self, kind):
        return [event for event in self.told if isinstance(event, kind)]

    def run(self):
        self.session.run()
        return self

"""A session without the app, from its start to its exit code."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.errors import AdvisorError, ExitCode
from advisor.experiment.events import Event, SessionFinished
from advisor.experiment.measuring.verification import limit_s, may_be_verified
from advisor.experiment.past.journal import Journal, PastSession
from advisor.experiment.request import Outputs, Request
from advisor.export.outputs import Written, write_outputs
from advisor.figures.formatting import format_seconds
from advisor.headless.progress import HeadlessReporter
from advisor.process.interrupts import INTERRUPTS
from advisor.recipe.catalog import load_catalog
from advisor.records import Exported
from advisor.report.terminal import print_sections
from advisor.report.whole import summary_sections

if TYPE_CHECKING:
    from advisor.experiment.session import Session

_SIGNAL_CHECK_S = 0.05


def open_session(request: Request, past: PastSession | None, emit: Callable[[Event], None]) -> Session:
    """A session with its journal and its trial processes, ready to run."""
    from advisor.experiment.session import Session
    from advisor.runner.trials import Runner

    Runner.prepare()
    journal = Journal.create(request) if past is None else Journal(past.path)
    return Session(request, Runner(), emit, journal, past=past)


def run_headless(request: Request, outputs: Outputs, past: PastSession | None = None) -> int:
    """Run a session, or take up a past one, to its end; report it, write the outputs, and return the exit code.

    SIGINT, SIGTERM and SIGHUP end the session; what was measured until then is reported and written. Raises
    AdvisorError when the session failed or an output could not be written, after all else is done; and
    KeyboardInterrupt when a second signal came and the session had not ended.
    """
    reporter = HeadlessReporter(sys.stderr)
    with INTERRUPTS.handled():
        session = open_session(request, past, reporter.handle)
        started = time.monotonic()
        with INTERRUPTS.obeyed_by():
            ended = _run_in_thread(session, session.run, reporter.say)
            if not ended:
                reporter.close()
                reporter.state.apply(SessionFinished(True, time.monotonic() - started))
            written = _report(reporter, request, outputs, session)
            state = reporter.state
            if cancelled := state.finished is not None and state.finished.cancelled:
                nothing = "" if state.baseline else "nothing was measured yet; "
                reporter.say(f"{nothing}go on with: perf-advisor --resume")
    if not ended:
        raise KeyboardInterrupt
    if state.failure and not cancelled:
        raise state.failure.error
    if state.finished is None:
        raise AdvisorError("the session ended without a result.", "This is a bug of ours: please report it.")
    if written.errors:
        raise written.errors[0]
    return ExitCode.INTERRUPTED if cancelled else ExitCode.OK


def _run_in_thread(session: Session, part: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Run a part of the session in a thread, which no signal interrupts. Return whether it has ended.

    The first signal ends it early; after the second this function does not wait for its end.
    """
    worker = threading.Thread(target=part, name="session", daemon=True)
    cancelled = INTERRUPTS.asked
    if cancelled:
        session.cancel()
    worker.start()
    while worker.is_alive() and not INTERRUPTS.urgent:
        worker.join(_SIGNAL_CHECK_S)
        if INTERRUPTS.asked and not cancelled:
            cancelled = True
            say("stopping; what was measured is kept (once more to leave at once)")
            session.cancel()
    return not worker.is_alive()


def _report(reporter: HeadlessReporter, request: Request, outputs: Outputs, session: Session) -> Written:
    """Write the files, then the summary: whoever reads our output may leave."""
    state, catalog = reporter.state, load_catalog(request.recipe_folders)

    def verify(exported: Exported) -> None:
        stack = state.stack
        if stack and may_be_verified(state) and outputs.verify and not INTERRUPTS.asked:
            reporter.say(f"verifying {exported.path} in a plain loop, {format_seconds(limit_s(stack))} at most")
            if not _run_in_thread(session, lambda: session.verify(exported, stack), reporter.say):
                reporter.close()

    written = write_outputs(state, request, outputs, catalog, verify)
    if state.baseline:
        print_sections(summary_sections(state, catalog), sys.stderr if outputs.json_to_stdout else sys.stdout)
    for sentence in written.sentences:
        reporter.say(sentence)
    return written

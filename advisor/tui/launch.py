"""Opens the app: first the fork server, then the app, then the session. The output files are written at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from advisor.experiment.events import SessionFinished
from advisor.experiment.past.journal import Journal, PastSession
from advisor.experiment.request import Outputs, Request
from advisor.figures.formatting import printable
from advisor.files.paths import is_file
from advisor.machine.hardware import sample_gpus
from advisor.machine.host import sample_host
from advisor.process.interrupts import INTERRUPTS
from advisor.process.meanwhile import collector_waits
from advisor.recipe.catalog import load_catalog
from advisor.runner.trials import Runner
from advisor.tui.app import AdvisorApp
from advisor.tui.context import closing_words, events_of

if TYPE_CHECKING:
    from advisor.experiment.session import Session


def run(app: AdvisorApp, past: PastSession | None = None) -> int:
    """Run the app, write the outputs and return the exit code. ``past`` is the session to resume, if any.

    If a signal came before the app could open, it stays closed. Raises AdvisorError if the session failed, after
    the app has closed and the outputs are written.
    """
    from advisor.export.outputs import write_outputs

    context, state = app.context, app.context.state
    with INTERRUPTS.handled():
        started = time.monotonic()
        if not INTERRUPTS.asked:
            Console().set_window_title(printable(f"perf-advisor {context.request.target.target}"))
            with collector_waits(), INTERRUPTS.obeyed_by(app.leave_soon):  # the app starts the collector once on screen
                app.run()
        if past and state.baseline is None and state.failure is None:  # the person left before the session was resumed
            for event in events_of(past):
                context.take(event)
        if state.finished is None and state.failure is None:  # the app closed before the session had stopped
            state.apply(SessionFinished(True, time.monotonic() - started))
        with INTERRUPTS.obeyed_by():
            catalog = context.catalog or load_catalog(context.request.recipe_folders)
            written = write_outputs(state, context.request, context.outputs, catalog)
            for line in (*closing_words(context), *written.sentences):
                print(printable(line))
            if state.failure and context.recorded is None:
                raise state.failure.error
            if written.errors:
                raise written.errors[0]
            return app.exit_code


def app_of_recorded(past: PastSession, recipe_folders: tuple[str, ...] = ()) -> AdvisorApp:
    """Return the app that shows a recorded session, ready to run.

    Recipes are loaded only from the given folders: a folder that only the journal names could hold unsafe code.
    """
    request = replace(past.request, recipe_folders=recipe_folders)
    still_there = is_file(request.config_path or "")
    outputs = Outputs(config_path=request.config_path if still_there else None, key_map=request.key_map, verify=False)
    return AdvisorApp(request, outputs, session_id=past.session_id, recorded=past)


def open_app(request: Request, outputs: Outputs, past: PastSession | None = None) -> AdvisorApp:
    """Start the fork server, and return the app with a session attached, ready to run."""
    # The fork server cannot start inside a running app, because standard error has no file descriptor there.
    Runner.prepare()
    if request.recipe_folders:
        load_catalog(request.recipe_folders)  # raises now, before the app is on screen, if a folder cannot be read
    journal = Journal.create(request) if past is None else Journal(past.path)

    def session() -> Session:
        from advisor.experiment.session import Session  # late: it imports the whole search

        return Session(request, Runner(), app.post_event, journal, past=past)

    app = AdvisorApp(
        request,
        outputs,
        session_id=journal.session_id,
        open_session=session,
        gauges=lambda: (sample_gpus(), sample_host()),
    )
    return app

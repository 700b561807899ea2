"""Commands about recorded sessions: ``sessions``, ``open``, ``compare``, ``report`` and ``export``."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli.options import REPORTS
from advisor.cli.parser import Parser, check_export, outputs_of, shows_the_app, warn
from advisor.errors import ExitCode, UsageError
from advisor.experiment.request import beside_own_files
from advisor.figures.formatting import counted, format_first, format_seconds, plain
from advisor.process.meanwhile import collector_waits

if TYPE_CHECKING:
    from advisor.experiment.past.journal import PastSession
    from advisor.experiment.state import SessionState


def run_report(arguments: list[str]) -> int:
    """Show a recorded session again, and write its report."""
    parser = Parser("report", run_report.__doc__)
    parser.add("session", *REPORTS, "--recipes")
    return _revisit(parser.parse(arguments), show=True)


def run_export(arguments: list[str]) -> int:
    """Write the settings that a recorded session found."""
    parser = Parser("export", run_export.__doc__)
    parser.add("session")
    parser.add("--export", default="tuned.yaml")
    parser.add("--config", help="your YAML, JSON or TOML config: write a patched copy of it instead")
    parser.add("--force", "--diff", "--map", "--config-kind", "--recipes")
    return _revisit(parser.parse(arguments), show=False)


def _revisit(options: Namespace, *, show: bool) -> int:
    """Write the outputs of a recorded session; with ``show``, print it too. An empty id means the latest session.

    Recipes are loaded only from folders in the options: a session may name unsafe code. Raises AdvisorError.
    """
    from advisor.experiment.ranking import CONTROL
    from advisor.export.outputs import write_outputs
    from advisor.recipe.catalog import REMOVED, load_catalog
    from advisor.report.terminal import print_sections
    from advisor.report.whole import summary_sections

    outputs = outputs_of(options)
    past, state, line = _opened(options.session)
    outputs = beside_own_files(outputs, past.request)
    if not show and not options.force:
        check_export(outputs, past.request.target)
    catalog = load_catalog(options.recipe_folders or ())
    if past.damage and not (show and state.baseline):  # the summary, if there is one, reports the damage itself
        warn(f"{past.damage}.")
    tried = {one.candidate.recipe for one in state.trials.values() if one.candidate.key not in REMOVED}
    if missing := ", ".join(map(plain, sorted(tried - {CONTROL, *catalog.recipes}))):
        warn(f"the session tried recipes that are not loaded: {missing}; name their folder with --recipes DIR.")
    if show:
        file = sys.stderr if outputs.json_to_stdout else sys.stdout
        print(f"Session {line}", file=file)
        print_sections(summary_sections(state, catalog), file)
    config = str(Path(outputs.config_path).resolve()) if outputs.config_path else None
    if config and config == past.request.config_path and not outputs.key_map:
        outputs = replace(outputs, key_map=past.request.key_map)  # for the same config, use the session's key map
    written = write_outputs(state, past.request, outputs, catalog)
    for sentence in written.sentences:
        print(plain(sentence), file=sys.stderr)
    if written.errors:
        raise written.errors[0]
    return ExitCode.OK if show or state.baseline else ExitCode.TARGET


def run_open(arguments: list[str]) -> int:
    """Show a recorded session in the app; `--resume ID` goes on measuring it."""
    parser = Parser("open", run_open.__doc__)
    parser.add("session", "--recipes")
    options = parser.parse(arguments)
    if not shows_the_app():
        command = f"perf-advisor report {options.session}".rstrip()
        raise UsageError("there is no terminal that the app can draw on.", f"`{command}` prints the session.")
    with collector_waits():
        from advisor.experiment.past.journal import open_session
        from advisor.tui.launch import app_of_recorded, run

    return run(app_of_recorded(open_session(options.session or None), tuple(options.recipe_folders or ())))


def run_compare(arguments: list[str]) -> None:
    """Show the changes between two recorded sessions: baseline, stack, settings, machine, versions."""
    parser = Parser("compare", run_compare.__doc__)
    parser.add_argument("before", metavar="A", help="the id of the earlier session, or its beginning")
    parser.add_argument("after", metavar="B", help="the id of the later one")
    options = parser.parse(arguments)
    from advisor.report.comparison import Measured, comparison_sections, summary
    from advisor.report.terminal import print_sections

    sides, lines = [], []
    for session_id in (options.before, options.after):
        past, state, line = _opened(session_id)
        if past.damage:
            warn(f"{past.damage}.")
        sides.append(Measured(past.session_id, past.request, state))
        lines.append(line)
    print(f"From {lines[0]}\nto   {lines[1]}\n\n{plain(summary(*sides))}")
    print_sections(comparison_sections(*sides), sys.stdout)


def run_sessions(arguments: list[str]) -> None:
    """List the recorded sessions, the latest first, or delete old ones."""
    parser = Parser("sessions", run_sessions.__doc__)
    parser.add("--keep")
    keep = parser.parse(arguments).keep
    from advisor.experiment.past.journal import list_sessions, session_ids
    from advisor.experiment.state import SessionState
    from advisor.report.terminal import print_text, table
    from advisor.report.verdict import result_line

    if keep:
        deleted = sum(map(_delete, islice(list_sessions(), keep, None)))
        print(f"{counted(deleted, 'session')} deleted.")
        return
    made, unread = table("session", "target", "result", "length"), session_ids()
    for past in list_sessions():
        unread.remove(past.session_id)
        state = SessionState.of(past.events)
        length = format_seconds(state.finished.session_s if state.finished else None)
        made.add_row(past.session_id, plain(past.request.target.command), result_line(state), length)
    if made.row_count:
        print_text(made, sys.stdout)
    if unread:
        many = f"{counted(len(unread), 'session')} cannot be read: {format_first(unread, 3)}"
        warn(f"{many}; `perf-advisor report {unread[0]}` says why.")
    elif not made.row_count:
        print("There is no session yet: `perf-advisor demo` makes one.")


def _delete(past: PastSession) -> bool:
    """Delete a session with its logs, if no process is writing it. Return whether it was deleted."""
    from advisor.experiment.past.journal import Journal

    try:
        Journal(past.path).close()
    except UsageError as error:
        warn(error.message)
        return False
    past.path.unlink()
    shutil.rmtree(past.path.with_suffix(""), ignore_errors=True)
    return True


def _opened(session_id: str) -> tuple[PastSession, SessionState, str]:
    """A recorded session, its state, and a line that names it with its result."""
    from advisor.experiment.past.journal import open_session
    from advisor.experiment.state import SessionState
    from advisor.report.verdict import result_line

    past = open_session(session_id or None)
    state = SessionState.of(past.events)
    return past, state, f"{past.session_id}, {plain(past.request.target.command)}: {result_line(state)}"

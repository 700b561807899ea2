"""A recorded session read again, to show it or to write files of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli.checks import check_export
from advisor.errors import ExitCode
from advisor.experiment.outputs import Outputs, beside_own_files
from advisor.experiment.request import Request
from advisor.figures.formatting import plain

if TYPE_CHECKING:
    from advisor.experiment.state import SessionState
    from advisor.recipe.catalog import Catalog


def revisit(
    session_id: str, outputs: Outputs, recipe_folders: tuple[str, ...], *, show: bool, force: bool = False
) -> int:
    """Write outputs of a recorded session, and show it when ``show`` is set. An empty id is the latest session.

    ``force`` replaces a file that holds the settings of another target. Only recipes of these folders are loaded, none
    that the session names. Raises AdvisorError.
    """
    from advisor.experiment.past.journal import open_session
    from advisor.experiment.state import SessionState
    from advisor.export.outputs import write_outputs
    from advisor.headless.summary import print_summary
    from advisor.recipe.catalog import load_catalog
    from advisor.report.verdict import result_line

    past = open_session(session_id or None)
    outputs = beside_own_files(outputs, past.request)
    if not force:
        check_export(outputs, past.request.target)
    state, catalog = SessionState.of(past.told()), load_catalog(recipe_folders)
    if past.damage and not (show and state.baseline):  # or it is shown with the rest
        print(f"warning: {past.damage}.", file=sys.stderr)
    if missing := sorted(_not_loaded(state, catalog)):
        told = f"the session tried recipes that are not loaded: {', '.join(map(plain, missing))}"
        print(f"warning: {told}; name their folder with --recipes DIR.", file=sys.stderr)
    if show:
        file = sys.stderr if outputs.json_to_stdout else sys.stdout
        print(f"Session {past.session_id}, {plain(past.request.target.command)}: {result_line(state)}", file=file)
        print_summary(state, file, catalog)
    outputs = _with_recorded_map(outputs, past.request)
    written = write_outputs(state, past.request, outputs, catalog)
    for sentence in written.sentences:
        print(plain(sentence), file=sys.stderr)
    if written.errors:
        raise written.errors[0]
    return ExitCode.OK if show or state.baseline else ExitCode.TARGET


def _with_recorded_map(outputs: Outputs, request: Request) -> Outputs:
    """The outputs, with the --map that the session was given for the same config where the command line has none."""
    same = outputs.config_path and request.config_path == str(Path(outputs.config_path).resolve())
    return replace(outputs, key_map=request.key_map) if same and not outputs.key_map else outputs


def _not_loaded(state: SessionState, catalog: Catalog) -> set[str]:
    """The recipes that a session tried and this process does not know: no code is run because a journal names it."""
    from advisor.experiment.ranking import CONTROL
    from advisor.recipe.catalog import REMOVED

    tried = {one.candidate.recipe for one in state.trials.values() if one.candidate.key not in REMOVED}
    return tried - {CONTROL, *catalog.recipes}

"""The summary at the end of a session: the brief parts of its report, as text."""

from typing import TextIO

from advisor.experiment.state import SessionState
from advisor.recipe.catalog import Catalog
from advisor.report.document import Paragraph, Section
from advisor.report.terminal import print_sections
from advisor.report.verdict import verdict
from advisor.report.whole import sections


def print_summary(state: SessionState, file: TextIO, catalog: Catalog) -> None:
    """Print the result, its caveats, the settings, the recommendations, and the evidence."""
    result = [Section("Result", (Paragraph(verdict(state)),))] if state.baseline else []
    print_sections([*result, *sections(state, catalog)], file)

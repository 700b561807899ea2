"""The report for people, in Markdown or as one HTML file."""

from __future__ import annotations

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.markup import markdown, page
from advisor.figures.formatting import (
    printable,
)
from advisor.recipe.catalog import Catalog
from advisor.report.whole import document_of


def markdown_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The report of a session, also of one that has not ended, as Markdown."""
    return printable(markdown(document_of(state, request, catalog)))


def html_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The same report as one HTML file that needs nothing else."""
    return printable(page(document_of(state, request, catalog)))

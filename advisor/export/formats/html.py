"""The report as one HTML page, by the template ``page.html`` beside this file."""

from collections.abc import Iterable
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.figures.formatting import printable
from advisor.records import Phase
from advisor.report.document import Document

_LONGEST_LISTING = 30  # lines; a longer one opens on a click
_PHASES = [phase.value.replace("_", " ") for phase in Phase]  # one has the same colour in every bar
_APART = 0.08  # the least distance between two ticks with names, as a share of the axis


class HtmlReport(Format):
    """The report for people, as one HTML file that needs nothing else."""

    option = "--report"
    suffixes = (".html",)
    order = 50
    offered = Offer("html", "Report (HTML)", "report.html", "html", "The same as a page of its own")

    def files(self, found: Found, path: str) -> Iterable[File]:
        yield File("Report", path, lambda: html_page(found.report(drawn=True)))


def html_page(document: Document) -> str:
    """A report as a page, light or dark as the reader's system. Whatever is in the report is text, never markup."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"kind": lambda part: type(part).__name__, "percent": "{:.1%}".format}
    page = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    limits = {"phases": _PHASES, "longest_listing": _LONGEST_LISTING, "apart": _APART}
    return printable(page.render(limits, report=document))

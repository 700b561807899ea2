"""The report as one HTML page, made from the template ``page.html``."""

from collections.abc import Iterable
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.figures.formatting import printable
from advisor.records import Phase
from advisor.report.document import Document

_LONGEST_LISTING = 30  # lines; longer listings open on a click
_PHASES = [phase.value.replace("_", " ") for phase in Phase]  # each phase has one colour in all bars
_APART = 0.08  # the smallest distance between two labelled ticks, as a share of the axis


class HtmlReport(Format):
    """The report for people, as one HTML file without other files."""

    option = "--report"
    suffixes = (".html",)
    order = 50
    offered = Offer("html", "Report (HTML)", "report.html", "html", "The same report as a web page")

    def files(self, found: Found, path: str) -> Iterable[File]:
        yield File("Report", path, lambda: html_page(found.report(drawn=True)))


def html_page(document: Document) -> str:
    """A report as a page, light or dark like the reader's system. All texts of the report are escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"kind": lambda part: type(part).__name__, "percent": "{:.1%}".format}
    page = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    limits = {"phases": _PHASES, "longest_listing": _LONGEST_LISTING, "apart": _APART}
    return printable(page.render(limits, report=document))

"""The format for the JSON report."""

from collections.abc import Iterable

from advisor.export.format import File, Format, Found, Offer


class JsonReport(Format):
    """Everything measured, for programs."""

    option = "--json"
    order = 60
    needs_baseline = False
    offered = Offer("json", "Report (JSON)", "report.json", "json", "Everything measured, for programs")

    def files(self, found: Found, path: str) -> Iterable[File]:
        from advisor.export.json_report import json_text

        yield File("JSON report", path, lambda: json_text(found.state, found.request))

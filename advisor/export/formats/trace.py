"""The format for the profile's Chrome trace."""

from collections.abc import Iterable
from pathlib import Path

from advisor.errors import UsageError
from advisor.export.format import File, Format, Found
from advisor.files.paths import is_file


class Trace(Format):
    """The trace of the profiled steps, gzipped as the session stores it."""

    option = "--trace"
    suffixes = (".json.gz",)
    order = 70
    needs_baseline = False
    missing = "The session ended before its profile, so there is no trace to write."

    def files(self, found: Found, path: str) -> Iterable[File]:
        """One file; none if the session has no profile."""
        facts = found.state.facts
        if facts and facts.profile and (stored := facts.profile.trace_path):
            if not is_file(stored):
                raise UsageError(f"the trace {stored} is missing.", "Measure again: each session stores its trace.")
            yield File("Trace", path, Path(stored).read_bytes)

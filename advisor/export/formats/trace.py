"""The profile's Chrome trace as a format."""

from collections.abc import Iterable
from pathlib import Path

from advisor.errors import UsageError
from advisor.export.format import File, Format, Found


class Trace(Format):
    """The trace of the instrumented pass, gzipped as the session stores it."""

    option = "--trace"
    suffixes = (".json.gz",)
    order = 70
    needs_baseline = False
    missing = "The session ended before its profile, so there is no trace to write."

    def files(self, found: Found, path: str) -> Iterable[File]:
        """One file; none where the session was not profiled."""
        facts = found.state.facts
        if facts and facts.profile and (stored := facts.profile.trace_path):
            yield File("Trace", path, lambda: _content(stored))


def _content(path: str) -> bytes:
    """The stored trace. Raises UsageError when it is gone."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"the trace {path} cannot be read: {error.strerror or error}.",
            "Measure again; sessions keep their traces in the state folder, beside the logs.",
        ) from error

"""The profile's Chrome trace as a format."""

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from advisor.errors import UsageError
from advisor.export.format import File, Format, Found


class Trace(Format):
    """The trace of the instrumented pass; the app saves it from its profile view."""

    option = "--trace"
    suffixes = (".json", ".json.gz")
    order = 70
    needs_baseline = False
    missing = "The session ended before its profile, so there is no trace to write."

    def files(self, found: Found, path: str) -> Iterable[File]:
        """One file, gzipped when it ends in .gz; none where the session was not profiled."""
        facts = found.state.facts
        if facts and facts.profile and facts.profile.trace_path:
            kept = facts.profile.trace_path
            yield File("Trace", path, lambda: _content(kept, compressed=path.lower().endswith(".gz")))


def _content(path: str, *, compressed: bool) -> bytes:
    """The trace as JSON, gzipped as the session keeps it or not. Raises UsageError when it is gone."""
    try:
        content = Path(path).read_bytes()
        return content if compressed else gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"the trace {path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            "Measure again; sessions keep their traces in the state folder, beside the logs.",
        ) from error
